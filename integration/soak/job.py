"""The driver of the soak: `cluster_job.py` with the soak's queries."""

from __future__ import annotations

import sys
from pathlib import Path

from integration import cluster_job
from integration.soak import queries

if __name__ == "__main__":
    cluster_job.QUERIES.update(
        joined=queries.joined, sessions=queries.sessions, buckets=queries.buckets
    )
    sys.exit(cluster_job.main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
