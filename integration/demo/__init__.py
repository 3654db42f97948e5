"""The demo: four stateful streaming jobs over real flights.

It kills them in mid-batch, and compares their results row by row with a batch computation.
"""
