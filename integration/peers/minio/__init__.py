"""MinIO as a place for state and for Spark checkpoints, by boto3 and by Hadoop's s3a."""
