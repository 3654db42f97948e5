"""The pods that Spark makes for Millpond's settings. No pod is started: there is no cluster."""
