"""What a user asks for: savepoints, rescale, migration, inspection.

Each operation plans first, without I/O. `plan.py` of a package is that half. Then the operation
executes its plan. The command line, the API and the agent call it. It may import all rooms but
these three.
"""
