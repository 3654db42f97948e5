"""Fetches the jars. If it cannot, one line says why."""

import sys

from integration.peers.delta import jars
from integration.peers.fetching import FetchError

try:
    jars.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-delta cannot run: {error}")
