"""A whole query, wherever it lies: the files that it has, the files that it must have, and its
image
at one committed batch.

An image is read from a Spark checkpoint or from a savepoint, and looks the same. The operations
call this room. It imports `store` and what is below, and writes nothing.
"""
