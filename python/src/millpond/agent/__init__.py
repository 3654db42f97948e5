"""The control plane's process: one agent per executor JVM.

`__main__` is the process, `gateway` the link to the JVM (the only importer of py4j), `service` what the agent does.
Protocol: docs/design/0001-planes-and-protocol.md.
"""
