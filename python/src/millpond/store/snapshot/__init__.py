"""Snapshots. `plan` decides which SSTs are new (pure). `upload` stores them. `publishing` writes
the manifest.
"""
