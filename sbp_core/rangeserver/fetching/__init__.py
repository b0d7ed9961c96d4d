"""FETCH: which batches, from memory or disk, in whose turn."""
