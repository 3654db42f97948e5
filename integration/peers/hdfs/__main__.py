"""Fetches the jars. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.hdfs import jars

try:
    jars.fetch(jars.HDFS)
except FetchError as error:
    sys.exit(f"millpond: make peer-hdfs cannot run: {error}")
