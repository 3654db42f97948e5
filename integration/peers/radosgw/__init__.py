"""State on Ceph's S3 gateway, radosgw, from Debian's packages.

`python -m integration.peers.radosgw` fetches them. `gateway.sh` starts the gateway.
"""
