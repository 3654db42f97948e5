"""Builds the server and fetches the jars of s3a. If it cannot, one line says why."""

import sys

from integration.peers.fetching import FetchError
from integration.peers.minio import parts

try:
    parts.fetch()
except FetchError as error:
    sys.exit(f"millpond: make peer-minio cannot run: {error}")
