"""A WSGI application for gunicorn, its settings, and producers from before and after the fork.

The environment has APP_ENDPOINT and APP_STREAM. GET /inherited uses the producer from before the
fork, GET /own uses the producer that `post_fork` made in the worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from sbp_core import connect

bind = "127.0.0.1:0"
workers = 2
preload_app = True

endpoint, stream = os.environ["APP_ENDPOINT"], os.environ["APP_STREAM"]
producers = {"/inherited": connect(endpoint).producer(stream, linger_ms=60_000)}
producers["/inherited"].send(b"parent")


def post_fork(server: Any, worker: Any) -> None:
    """Make the producer of a worker, as the error of an inherited one says."""
    producers["/own"] = connect(endpoint).producer(stream, linger_ms=60_000)
    producers["/own"].send(b"worker")


def post_worker_init(worker: Any) -> None:
    """Log that SIGTERM ends this worker in good order from now on."""
    worker.log.info("worker is ready")


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Send a record, and answer before it is stored."""
    producers[environ["PATH_INFO"]].send(b"request")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"sent\n"]
