"""Restore: `plan` decides which manifest and changelogs make a version (pure), `execute` lays the files out locally."""
