"""Fetches nothing: the code that makes the pods is among pyspark's jars."""
