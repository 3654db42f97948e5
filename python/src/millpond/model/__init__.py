"""What the words mean: ids, versions and their lineage, key groups, partition keys, strict JSON.

This room holds values and arithmetic, and does no I/O. Every room above calls it. It imports
nothing of Millpond but the errors.
"""
