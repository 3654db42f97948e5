"""Builds the emulator and fetches the connector. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.gcs import parts

try:
    parts.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-gcs cannot run: {error}")
