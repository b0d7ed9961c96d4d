"""Staged batches: kept, read, published or dropped."""
