"""Command line: the hands. Does: reads arguments, prints. Never: anything a program could not do through
`server`.
"""
