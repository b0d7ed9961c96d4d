"""Futures of records that were sent: one state for all records of a batch, and an index in it."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from sbp_core.errors import ConfigurationError, DeadlineExceededError, SbpError

_LOG: Final = logging.getLogger("sbp_core.app")


@dataclass(frozen=True, slots=True)
class Delivered:
    """The outcome of records of a stream that were sent together: appended, unless `error` is set.

    The first record is at `base_offset`; -1 if the producer has an id.
    """

    stream: str
    base_offset: int
    record_count: int
    error: SbpError | None = None


class Receipt:
    """The state of records that were sent together: open, then settled, once. Thread-safe."""

    __slots__ = ("_callbacks", "_lock", "base_offset", "error", "is_settled")

    def __init__(self) -> None:
        self.is_settled = False
        self.base_offset = -1
        self.error: SbpError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def settle(self, base_offset: int, error: SbpError | None = None) -> None:
        """Record the offset of the first record, or the error of all; run the callbacks."""
        with self._lock:
            assert not self.is_settled
            self.base_offset, self.error, self.is_settled = base_offset, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call_back(callback)

    def abandon(self, error: SbpError) -> None:
        """Settle the copy in the child of a fork: without callbacks, with a lock of its own."""
        self._lock = threading.Lock()
        self._callbacks = []
        if not self.is_settled:
            self.error, self.is_settled = error, True

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Run a callback once the records are settled: in the thread that settles them, or now."""
        with self._lock:
            if not self.is_settled:
                self._callbacks.append(callback)
                return
        call_back(callback)


def _nothing() -> Receipt:
    receipt = Receipt()
    receipt.settle(-1)
    return receipt


NOTHING: Final = (_nothing(), 0)
"""The receipt of no record."""


def call_back(callback: Callable[..., object], *arguments: object) -> None:
    """Call a callback of the user, and log its error: other callers wait for the producer."""
    was_calling_back = getattr(_thread, "is_calling_back", False)
    _thread.is_calling_back = True
    try:
        callback(*arguments)
    except (Exception, SystemExit, asyncio.CancelledError):  # noqa: BLE001 - all are logged
        _LOG.exception("callback failed name=%r", callback)
    finally:
        _thread.is_calling_back = was_calling_back


_thread: Final = threading.local()


def check_may_wait(call: str) -> None:
    """Raise ConfigurationError if a callback of a producer makes a call that may wait."""
    if getattr(_thread, "is_calling_back", False):
        raise ConfigurationError(
            f"{call} in a callback of a producer holds that producer up, perhaps for ever; note"
            " what was delivered, and make the call elsewhere"
        )


def timeout_seconds(timeout: float | None, timeout_ms: float | None) -> float | None:
    """Return the timeout of a call in seconds; `timeout_ms` is its old name."""
    if timeout_ms is None:
        return timeout
    warnings.warn("timeout_ms=... is now timeout=..., in seconds", DeprecationWarning, stacklevel=3)
    return timeout_ms / 1000


class _Delivery:
    """A record that was sent: the common part of both futures."""

    __slots__ = ("_index", "_receipt")

    def __init__(self, receipt: Receipt, index: int) -> None:
        self._receipt = receipt
        self._index = index

    def done(self) -> bool:
        """Return whether the outcome of the record is known."""
        return self._receipt.is_settled

    def _offset(self) -> int:
        if self._receipt.error is not None:
            raise self._receipt.error.with_traceback(None)  # it is raised again and again
        base_offset = self._receipt.base_offset
        return base_offset if base_offset < 0 else base_offset + self._index


class DeliveryTimeoutError(DeadlineExceededError, TimeoutError):
    """The outcome of a record is not known in time."""


class Delivery(_Delivery, Future[int]):
    """The future of a record that was sent: the offset at which it was appended.

    The offset is -1 if the producer has an id: its records get offsets when they are published.
    A delivery cannot be cancelled. Callbacks run in the producer's thread, and must return soon:
    the producer waits for them.
    """

    def result(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> int:
        """Return the offset once the record is on disk, as its stream demands.

        Raises SbpError if the record was not appended, or may not have been (see its `outcome`);
        DeliveryTimeoutError if the outcome is not known after `timeout` seconds; ConfigurationError
        in a callback, where the wait would never end. `timeout_ms` is the old name, in ms.
        """
        seconds = timeout_seconds(timeout, timeout_ms)
        if not self._receipt.is_settled:
            check_may_wait("result()")
            settled = threading.Event()
            self._receipt.on_settled(settled.set)
            if not settled.wait(seconds):
                raise DeliveryTimeoutError(
                    f"the record is not acknowledged after {seconds:g} s; the producer goes on"
                    " with it"
                )
        return self._offset()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the record, None if it was appended; waits as `result` does."""
        if not self._receipt.is_settled:
            check_may_wait("exception()")
        return super().exception(timeout)

    def __getattr__(self, name: str) -> Any:
        """Become a whole future once code such as `concurrent.futures.wait` looks into it.

        Most deliveries are never looked into, and a whole future costs more than to send a record.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        with _becoming:
            is_first = "_condition" not in self.__dict__
            if is_first:  # made apart: other threads may hold the condition once they see it
                whole: Future[int] = Future()
                whole.set_running_or_notify_cancel()
                self.__dict__.update(whole.__dict__)
        if is_first:
            self._receipt.on_settled(self._complete)
        return object.__getattribute__(self, name)

    def _complete(self) -> None:
        if self._receipt.error is not None:
            self.set_exception(self._receipt.error)
        else:
            self.set_result(self._offset())


_becoming: Final = threading.RLock()
"""Reentrant: a signal handler may look into a delivery while the main thread does."""


class AsyncDelivery(_Delivery):
    """The future of a record that was sent; awaited, it is the offset at which it was appended.

    Raises SbpError if the record was not appended, or may not have been (see its `outcome`). The
    offset is -1 if the producer has an id: its records get offsets when they are published.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, int]:
        if not self._receipt.is_settled:
            settled = asyncio.Event()
            self._receipt.on_settled(settled.set)
            yield from settled.wait().__await__()
        return self._offset()

    def add_done_callback(self, callback: Callable[[AsyncDelivery], None]) -> None:
        """Call `callback` with this delivery on the loop, or now if it is done already.

        The callback must return soon: the producer waits for it.
        """
        self._receipt.on_settled(lambda: callback(self))
