"""HTTP for people and programs: a client of the cluster, in a process of its own.

Each request is executed by a client with the identity of the caller (callers.py), so the cluster
checks the rights, and nothing here does. The listener and its connections
(http_listener.py) also serve the admin endpoint of servers.
"""
