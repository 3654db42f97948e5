"""A simulation of the whole store: one seed, one order of all that happens (docs/design/0008-simulation.md)."""
