"""Appending record batches: frames, numbering and repeats."""
