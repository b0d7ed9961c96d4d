"""The way into the log: APPEND, staged batches, END_TXN, all through the group committer."""
