"""File systems of this machine, as places for Spark checkpoints. They need no other system."""
