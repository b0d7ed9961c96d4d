"""The option `where`: rows that a query wants, and batches that cannot have any. See `grammar`."""
