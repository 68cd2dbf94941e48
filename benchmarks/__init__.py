"""Headrace beside its peers: `make bench`."""
