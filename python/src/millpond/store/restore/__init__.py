"""Restore. `plan` decides which manifest and changelogs make a version (pure). `execute` brings the
files here.
"""
