"""Python's `transformWithState` with its state in bulk. It runs inside Spark's Python workers.

The shim's package `transport` is the other end. `worker.serve` is what a worker calls.
"""
