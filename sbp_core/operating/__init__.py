"""A cluster as operators see it, and what they change in it, through a client.

The web console and the command show the same: what moving the cursors of a group means, and how
streams and groups grow over time. It is computed here, without pages and terminals.
"""
