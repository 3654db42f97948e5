"""Writing a savepoint or a Spark checkpoint as a whole: a target that is complete or absent, and
the copying of an image into it.

Every operation that makes a directory calls it.
"""
