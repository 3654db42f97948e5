"""Fetches Prometheus. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.prometheus import server

try:
    server.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-prometheus cannot run: {error}")
