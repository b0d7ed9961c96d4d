"""Copies of ranges on several servers: the primary, the secondaries, and how all of them end."""
