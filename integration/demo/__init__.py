"""The demo: four stateful streaming jobs over real flights, killed in mid-batch, compared row by row."""
