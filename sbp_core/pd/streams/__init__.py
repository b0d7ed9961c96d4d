"""Streams and their ranges, schemas and cursors."""
