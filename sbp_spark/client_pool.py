"""Clients that live as long as their process: Spark runs task after task in the same worker."""

from __future__ import annotations

import os
import threading
from enum import IntEnum
from typing import Final

from sbp_core import limits
from sbp_core.client import Client, Connecting, RetryPolicy, Wishes
from sbp_spark.options import Servers
from sbp_spark.spark_internals.worker_process import settle

_CONNECT_TIMEOUT_MS: Final = 2_000
_FIRST_CALL_TIMEOUT_MS: Final = 5_000


class Patience(IntEnum):
    """How long a call goes on trying while the servers are away, in ms."""

    STARTING = 1_500
    """Before anything was read or written: a wrong endpoint is to be named at once."""
    RUNNING = limits.RETRY_BUDGET_MS
    """In the middle of work, which a restart of the servers must not end."""


_clients: dict[tuple[int, Servers, Patience], Client] = {}
_lock: Final = threading.Lock()


def client_for(servers: Servers, patience: Patience) -> Client:
    """Return this process's client of a cluster; it is never closed.

    Whoever has work to do asks for one: a worker of Spark's settles first.
    """
    key = (os.getpid(), servers, patience)
    with _lock:
        settle()
        if key not in _clients:
            is_starting = patience is Patience.STARTING
            _clients[key] = Client(
                str(servers.endpoint),
                timeout_ms=_FIRST_CALL_TIMEOUT_MS if is_starting else limits.REQUEST_TIMEOUT_MS,
                connecting=Connecting(
                    timeout_ms=_CONNECT_TIMEOUT_MS,
                    wishes=Wishes(servers.is_compressed, servers.isolation_class),
                ),
                retry=RetryPolicy(budget_ms=patience.value),
                reads_locally=servers.reads_locally,
            )
        return _clients[key]
