"""Snapshots: `plan` decides which SSTs are new (pure), `upload` stores them and publishes the manifest."""
