"""The placement driver's side of backups: the cut through a cluster, and its restore."""
