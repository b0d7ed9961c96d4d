"""The range servers of a cluster: who joins, is alive, and keeps which log."""
