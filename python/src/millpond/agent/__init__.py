"""The process of the control plane: one agent beside each executor's JVM.

`__main__` is the process. `gateway` is the link to the JVM, and the only importer of py4j.
`service`
answers the calls. Only the shim calls it. It imports `operations`, `store` and what is below.

Protocol: docs/design/0001-planes-and-protocol.md.
"""
