"""A Prometheus of Debian's that scrapes a job on a standalone cluster, by the files in conf/."""
