"""Repartition: every row of a state is written anew, for another number of partitions or key
groups, or from the tables of a canonical savepoint.

`plan` decides on the new partitions (pure). `store_writer` makes the changelogs of one store.
`pipeline` runs the work over processes. A restore, a fork and a rescale that changes key groups
call it. It imports `output` and `spread`, and the rooms below `operations`.
"""
