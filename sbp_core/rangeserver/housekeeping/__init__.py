"""Retention, and freeing the space of dead batches."""
