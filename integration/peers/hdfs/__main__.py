"""Fetches the jars. If it cannot, one line says why."""

import sys

from integration.peers.hdfs import jars
from integration.peers.maven import FetchError

try:
    jars.fetch(jars.HDFS)
except FetchError as error:
    sys.exit(f"millpond: make peer-hdfs cannot run: {error}")
