"""Millpond with each Java and Python that it supports, beside those that `make build` takes.

`python -m integration.peers.runtimes` looks for them and makes an environment for each.
"""
