"""Operating a cluster through a client: views of it, and changes that are shown before.

The web console and the command show the same: what moving the cursors of a group means, and how
streams and groups grow over time. It is computed here, without pages and terminals.
"""
