"""The `sbp` command."""
