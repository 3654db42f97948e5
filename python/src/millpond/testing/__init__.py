"""What tests of storages need: the contract of storages as a suite, and a storage that fails on
purpose.

It is shipped, so that storages of others can be tested too. It imports `storage` and what is below.
The suite needs pytest.
"""
