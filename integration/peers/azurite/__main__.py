"""Installs the emulator and fetches the jars of ABFS. If it cannot, one line says why."""

import sys

from integration.peers.azurite import parts
from integration.peers.fetching import FetchError

try:
    parts.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-azurite cannot run: {error}")
