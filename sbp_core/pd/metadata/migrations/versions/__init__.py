"""One module per revision. A revision never changes once it was released."""
