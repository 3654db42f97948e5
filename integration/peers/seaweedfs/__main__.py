"""Builds the server. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.seaweedfs import parts

try:
    parts.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-seaweedfs cannot run: {error}")
