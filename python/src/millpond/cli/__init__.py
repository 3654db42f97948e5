"""The command `millpond`. Data goes to stdout, everything else to stderr."""
