"""Calls between servers: of placement drivers to range servers, and between range servers.

`links` has the connections, `driver_calls` and `replica_calls` the operations.
"""
