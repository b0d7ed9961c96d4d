"""The metadata of a cluster: on disk, checked, and in memory."""
