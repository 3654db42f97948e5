"""The files of one store.

Lists them, restores a version from them, publishes a snapshot, decides what may be collected. The
agent calls it for the running query; `query` and `state` call it to look at a query. It imports
`spark` (which batches are committed), `storage`, `format` and `model`.
"""
