"""Backend: run a model on memory that it is given.

Does: `base` is the contract, one file for each engine implements it. Never: reads a request, moves a tensor
between client and model, knows how batches come about. In: references to placed inputs and outputs. Out: the
same outputs, filled.
"""
