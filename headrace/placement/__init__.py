"""Placement: where instances live and what they get of the machine.

Does: instance groups into a list of instances, cores divided among them. Never: starts anything. In: a model
spec and the machine. Out: frozen plans; pure.
"""
