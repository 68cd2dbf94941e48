"""Memory: who owns the bytes.

Does: the names of clients' regions (their mappings and leases live in the wire), the arena that batches and
replies are made in. Never: moves a byte (`transfer` does), decides who is served. In: register calls, sizes.
Out: addresses that stay valid.
"""
