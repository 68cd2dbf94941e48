"""Transfer: the only room where tensor bytes move.

Does: `plan` chooses at load how a model's batches will be moved, `host` does it in CPU memory. Never: decides
who shares a batch, allocates without the arena, runs a model other than through its instance. In: a batch.
Out: the batch, settled.
"""
