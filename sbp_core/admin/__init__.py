"""The admin endpoint of a server: health, readiness, metrics and settings over HTTP.

The endpoint runs on a thread and a loop of its own (endpoint.py). The thread has a bounded share of
the processor (pacing.py), and takes no more than that from requests of the protocol. Answers come
from the server's loop, once for all requests at the same time (pages.py).

Import only what a server needs that has an admin port: its libraries take 5 MiB.
"""
