"""Azurite, the emulator of Azure's storage, as a place for Spark checkpoints by Hadoop's ABFS."""
