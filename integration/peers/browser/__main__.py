"""Fetches Chromium, and what drives it. If it cannot, one line says why."""

import sys

from integration.peers.browser import parts
from integration.peers.fetching import FetchError

try:
    parts.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-browser cannot run: {error}")
