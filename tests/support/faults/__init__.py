"""Faults of servers, disks and networks, clients at work under them, and the checker."""
