"""What may be deleted of a store.

`plan` decides it (pure). `pins` protects files that readers outside of the query need.
`announcements` tells publishers what a sweep is about to delete. `agent/collecting.py` executes the
plans. No other module decides that a version may be deleted.
"""
