"""State on SeaweedFS's S3 server, built from its Go module: `make peer-seaweedfs`."""
