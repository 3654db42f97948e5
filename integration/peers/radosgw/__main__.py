"""Fetches the gateway, and what it needs. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.radosgw import parts

try:
    parts.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-radosgw cannot run: {error}")
