"""Consumer groups with members: which member reads which stream.

The placement driver assigns the streams that the members subscribe to, each to one member. Read
group.py first: the states, and why no stream has two readers.
"""
