"""An emulator of Google Cloud Storage as a place for Spark checkpoints, by Google's connector."""
