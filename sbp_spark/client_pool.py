"""The connector's access to a cluster: one client per process, and its first requests.

A client lives as long as its process, because Spark runs task after task in the same worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sbp_core import limits
from sbp_core.client import Client, Connecting, RequestedFeatures, RetryPolicy, StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    DeadlineExceededError,
    NotFoundError,
    TransportError,
)
from sbp_core.lake.catalog import open_catalog
from sbp_core.lake.history_client import HistoryClient
from sbp_spark.options.endpoints import Servers
from sbp_spark.options.stream_selection import StreamRef
from sbp_spark.spark_internals.worker_process import SEEN, tune_worker

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_CONNECT_TIMEOUT_MS: Final = 2_000
_FIRST_CALL_TIMEOUT_MS: Final = 5_000
_STARTING_MS: Final = 1_500


class Patience(Enum):
    """How long a call is retried while the servers are down."""

    STARTING = "starting"
    """1.5 s, before anything was read or written: a wrong endpoint is reported at once."""
    LOOKING = "looking"
    """A minute, where work goes on without the answer."""
    RUNNING = "running"
    """As long as the option retryTimeout says: work that an outage must not end."""

    def budget_ms(self, servers: Servers) -> float:
        """Return how long a call to these servers is retried."""
        if self is Patience.RUNNING:
            return servers.retry_ms
        return _STARTING_MS if self is Patience.STARTING else limits.RETRY_BUDGET_MS


Connect = Callable[[Servers, Patience], Client]
"""Returns a client of a cluster."""


def new_client(servers: Servers, patience: Patience) -> Client:
    """Make a client of a cluster."""
    is_starting = patience is Patience.STARTING
    make = partial(HistoryClient, open_catalog=partial(_open_catalog, servers.history))
    return (make if servers.history else Client)(
        str(servers),
        timeout_ms=_FIRST_CALL_TIMEOUT_MS if is_starting else limits.REQUEST_TIMEOUT_MS,
        connecting=Connecting(
            timeout_ms=_CONNECT_TIMEOUT_MS,
            tls=servers.tls,
            credentials=servers.credentials,
            features=RequestedFeatures(servers.is_compressed, servers.isolation_class),
        ),
        retry=RetryPolicy(budget_ms=patience.budget_ms(servers)),
    )


def _open_catalog(history: str) -> Catalog:
    """Return the catalog that the option names. Raises ConfigurationError."""
    if "/" in history:
        if not Path(history, "catalog.db").exists():
            raise ConfigurationError(
                f"option history: there is no catalog in {history}; expected the folder of"
                " `sbp lake --warehouse`"
            )
        return open_catalog(None, history)
    return open_catalog(None if history.lower() == "auto" else history, None)


class ClientPool:
    """The clients of a process: one for each cluster and patience. None is ever closed."""

    def __init__(
        self, connect: Connect = new_client, tune: Callable[[], None] = tune_worker
    ) -> None:
        self._connect = connect
        self._tune = tune
        self._clients: dict[tuple[int, Servers, Patience], Client] = {}
        self._lock = threading.Lock()

    def client_for(self, servers: Servers, patience: Patience) -> Client:
        """Return this process's client of a cluster.

        Everything that does work starts here, so a worker process of Spark is tuned here.
        """
        key = (os.getpid(), servers, patience)
        with self._lock:
            self._tune()
            if key not in self._clients:
                self._clients[key] = self._connect(servers, patience)
            return self._clients[key]


PROCESS_POOL: Final = ClientPool()
"""Spark makes readers and writers, so they find their clients here."""


def client_for(servers: Servers, patience: Patience) -> Client:
    """Return this process's client of a cluster; it is never closed."""
    return PROCESS_POOL.client_for(servers, patience)


@contextmanager
def first_contact(servers: Servers) -> Iterator[Client]:
    """Yield a client with short timeouts; without an answer ConnectError names the option.

    A cluster that has answered in this session before is waited for as during any work: the plans
    of `foreachBatch` are made while a query runs.
    """
    seen = SEEN.has_answered(str(servers))
    try:
        yield client_for(servers, Patience.RUNNING if seen else Patience.STARTING)
        SEEN.note(str(servers))
    except (TransportError, DeadlineExceededError) as error:
        raise ConnectError(
            f"option endpoint: no placement driver answers at {servers}"
            f" ({error.__cause__ or error}); check the address, and that `sbp serve` runs there"
        ) from None


def describe_refs(servers: Servers, refs: Sequence[StreamRef], option: str) -> list[StreamInfo]:
    """Return the streams that an option names, asking the placement driver for the first time.

    Raises NotFoundError naming all that are missing, ConnectError if the placement driver does not
    answer.
    """
    with first_contact(servers) as client:
        if not refs:
            client.ping()
            return []
        try:
            return client.describe_streams([ref.key for ref in refs])
        except NotFoundError as error:
            raise NotFoundError(
                error.code,
                f"option {option}: {error.message.rpartition(';')[0]}; create it with `sbp streams"
                f" create NAME --endpoint {servers}`, or find its present name with `sbp streams"
                f" list --endpoint {servers}`",
            ) from None
