"""Fetches the jars of Spark's tests. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.spark import jars

try:
    jars.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-spark cannot run: {error}")
