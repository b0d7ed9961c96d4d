"""The admin endpoint of a server: health, readiness, metrics and settings over HTTP.

It runs on a thread of its own with a loop of its own (endpoint.py), whose share of the processor
is bounded (pacing.py), so that no load of it takes more than that from requests of the protocol.
Answers come from the server's loop, once for all requests at the same time (pages.py).

Import only what a server needs that has an admin port: its libraries take 5 MiB.
"""
