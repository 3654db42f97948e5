"""Fetches the jars. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.kafka import jars

try:
    jars.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-kafka cannot run: {error}")
