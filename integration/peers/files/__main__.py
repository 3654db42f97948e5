"""Fetches nothing: the file systems are there."""
