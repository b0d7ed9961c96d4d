"""Giving the space of dead batches back."""
