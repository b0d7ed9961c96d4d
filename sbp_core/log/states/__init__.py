"""The states that the entries of a log add up to: ranges, writers, transactions."""
