"""Producers, consumers and transactions when their process forks, or ends.

A fork copies these objects without the threads that work for them, and two processes would append
and commit the same records. Therefore only the process that made an object may use it. A child may
use an inherited connection, because its client opens sockets of its own there.

Producers that are still open when the interpreter ends get EXIT_FLUSH_MS to send their records. The
records that are left are counted in the log; Python writes it to stderr if logging is not set up.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - pyarrow may need it at exit, which is too late
import logging
import os
import sys
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from typing import Final, NoReturn, Protocol

from sbp_core.errors import ConfigurationError, SbpError

_LOG: Final = logging.getLogger("sbp_core.app")

EXIT_FLUSH_MS: Final = 10_000
"""How long the end of a process is held up by all its open producers together."""


class Unsendable:
    """A mixin: an object that cannot be sent to another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be sent to another process; send the endpoint, and"
            " connect there"
        )


class OfProcess(Unsendable, ABC):
    """A mixin: an object that only the process that made it can use."""

    @abstractmethod
    def on_fork(self, error: ConfigurationError) -> None:
        """Refuse every use with this error: this is the copy in a child."""


class _Unclosed(Protocol):
    """A producer, as the end of the process sees it."""

    def on_exit(self, deadline: float) -> None:
        """Send records until a time of the monotonic clock; report the others as lost."""


_in_use: Final[weakref.WeakSet[OfProcess]] = weakref.WeakSet()
_unclosed: Final[weakref.WeakSet[_Unclosed]] = weakref.WeakSet()
_finalized: Final[set[int]] = set()
"""The process whose end flushes producers by a finalizer of `multiprocessing`."""


def use_here(used: OfProcess) -> None:
    """Record that an object has begun to work, so that the children of a fork refuse it."""
    _in_use.add(used)


def flush_at_exit(producer: _Unclosed) -> None:
    """Let a producer send its records before the process ends.

    Children of `multiprocessing` end without `atexit`. Such a child runs the finalizers of
    `multiprocessing` that are registered in the child.
    """
    _unclosed.add(producer)
    workers = sys.modules.get("multiprocessing.util")
    if workers is not None and os.getpid() not in _finalized:
        _finalized.clear()
        _finalized.add(os.getpid())
        workers.Finalize(None, _flush_all, exitpriority=0)


def report_lost(stream: str, record_count: int, error: SbpError) -> None:
    """Log an error for records of a producer that are not stored, or may not be."""
    _LOG.error("records lost count=%d stream=%s: %s", record_count, stream, error)


def warn_unclosed(streams: str, record_count: int, producer: object) -> None:
    """Warn of a producer of `streams` that was left open."""
    warnings.warn(
        f"the producer of {streams} was not closed: {record_count} records were not flushed."
        " Close it, or enter it with `with`",
        ResourceWarning,
        source=producer,
        stacklevel=2,
    )


def _refuse_in_child() -> None:
    for each in list(_in_use):
        name = type(each).__name__.removeprefix("Async")  # facades have the name without it
        each.on_fork(
            ConfigurationError(
                f"this {name} was made in process {os.getppid()}, and this is a"
                " child of it: make one here, after the fork (gunicorn: post_fork; multiprocessing:"
                " in the function that the process runs)"
            )
        )
    _in_use.clear()
    _unclosed.clear()


def _flush_all() -> None:
    deadline = time.monotonic() + EXIT_FLUSH_MS / 1000
    for each in list(_unclosed):
        each.on_exit(deadline)


os.register_at_fork(after_in_child=_refuse_in_child)
atexit.register(_flush_all)
