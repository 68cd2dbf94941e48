"""Core: the nouns that every room shares, and the one door to the Rust extension.

Does: data types, tensor descriptions, errors, stage words, protocol messages. Never: does anything by itself,
keeps state, or imports another room. In: nothing. Out: names.
"""
