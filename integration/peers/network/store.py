"""The S3 server of the tests, as a process on a host: `python -m integration.peers.network.store
<address>` prints its endpoint and a bucket, and runs until its standard input ends.
"""

from __future__ import annotations

import json
import sys

from tests.s3_server import s3_server


def main(address: str) -> None:
    """Run the server at an address of this host."""
    with s3_server(address) as server:
        print(json.dumps([server.endpoint, server.bucket()]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
