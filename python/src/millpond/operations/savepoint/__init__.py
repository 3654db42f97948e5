"""Savepoints: one module for each verb.

`create`, `export` and `edit` write savepoints, `restore` and `bootstrap` make Spark checkpoints,
`manage`, `diff` and `match_job` (the verb `plan`) look at them. `millpond.savepoint` shows the
verbs to users, and the command line calls that. The package may import `repartition`, `output`,
`inspect`, `spread`, and the rooms below `operations`.
"""
