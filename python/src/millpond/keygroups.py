"""The old name of `millpond.model.key_groups`, which jobs may import."""

from millpond.model.key_groups import KeyGroups, key_groups_for

__all__ = ["KeyGroups", "key_groups_for"]
