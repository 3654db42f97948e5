"""Fetches the jars, and packs the archive. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.hdfs import jars
from integration.peers.yarn import archive

try:
    jars.fetch(jars.YARN)
    archive.pack()
except FetchError as error:
    sys.exit(f"millpond: make peer-yarn cannot run: {error}")
