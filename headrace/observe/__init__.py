"""Observe: what happened, for people and for machines.

Does: cuts statistics and metrics from the sums that the wire keeps, writes the log. Never: measures anything
itself, changes anything. In: sums. Out: messages, text, lines.
"""
