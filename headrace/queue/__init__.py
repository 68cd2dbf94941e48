"""Queue: which waiting requests are executed together, and when.

Does: `policy` decides, a pure function; `loop` obeys it, one thread an instance. Never: touches a tensor, or
looks into a request. In: what waits, by shape. Out: batches.
"""
