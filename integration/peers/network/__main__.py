"""Fetches nothing: the kernel has network namespaces. The tests say why they cannot run."""
