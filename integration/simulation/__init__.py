"""A simulation of the whole store: one seed decides the order of everything that happens.

Source: docs/design/0008-simulation.md.
"""
