"""Calls between servers: of placement drivers to range servers, and between range servers.

`links` has the connections. `range_servers`, `transactions` and `replicas` have the operations.
"""
