"""A standalone cluster whose hosts have two networks: one to each other, one to the storage.

The hosts are network namespaces of this machine, which only root can make.
"""
