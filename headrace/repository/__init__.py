"""Repository: which models there are, in which versions, and what state each is in.

Does: scans directories, applies version policies, loads and unloads versions and keeps their states. Never:
executes a request, speaks a protocol. In: directories. Out: published intakes, and the table of states that
control reads.
"""
