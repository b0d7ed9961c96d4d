"""Backups of a cluster, taken and restored through the protocol.

Read `format.py` first: what a backup consists of. `storage.py` is where it is kept, `taking.py` and
`restoring.py` are the two ways, `upkeep.py` lists, checks and removes backups. `marks.py` keeps it
from removing what a backup is about to use.
"""
