"""Operating a cluster through a client: views of it, and changes that are shown before.

The web console and the command show the same: how far groups are behind, what a reset of cursors
means, how streams grow, what to do about a transaction. This package computes it, without pages and
terminals.
"""
