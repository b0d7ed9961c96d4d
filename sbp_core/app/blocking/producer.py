"""Sending records.

Generated from ../aio/producer.py: do not edit. Change that one, and run `make client`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Self

from sbp_core.app import defaults
from sbp_core.app.delivery import NOTHING, Delivered, Delivery, call_back
from sbp_core.app.encoding import encode_collected, no_bytes
from sbp_core.app.gates import Gate
from sbp_core.app.outbox import Batching, Encoded, Outbox, Outgoing, State
from sbp_core.app.rows import Rows, Target, encode_given
from sbp_core.client import AppendItem, AppendOutcome, Client, Writer
from sbp_core.errors import (
    DeadlineExceededError,
    RecordBatchError,
    SbpError,
    SchemaError,
    UnsupportedError,
)
from sbp_core.records import Compression, record_too_large

OnDelivery = Callable[[Delivered], None]


class Producer:
    """Sends records to one stream, in order. Made by `Connection.producer`.

    Threads may share it. `send` collects records; a worker makes record batches of
    them, and appends each once: what is retried has the number of the first try. An error that
    retries do not cure ends the producer: deliveries that are open get it, and the next `send`,
    `flush` or `close` raises it.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        *,
        batching: Batching | None = None,
        compression: Compression = "none",
        timestamp_column: str | None = None,
        on_delivery: OnDelivery | None = None,
        on_close: Callable[[Producer], None] | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._on_delivery = on_delivery
        self._on_close = on_close
        self._gate = Gate()
        self._lock = self._gate.lock
        self._outbox = Outbox(batching or Batching(), time.monotonic)
        self._is_begun = False
        self._plain_bytes_max = 0
        """Bytes of the largest record that `send` accepts: none of a typed stream."""
        self._target = Target(-1, None, 0, compression, timestamp_column)

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_us: int | None = None,
    ) -> Delivery:
        """Send a record; return the future of its offset. Waits while the buffer is full.

        `timestamp_us` is in microseconds since the epoch (UTC), by default now. Raises the error
        that ended the producer, ConfigurationError if it is closed, RecordBatchError for a record
        that is too large, SchemaError for a typed stream, which `send_many` is for, and TypeError
        for what is not bytes.
        """
        if not self._is_begun:
            self._begin()
        size_bytes = defaults.RECORD_OVERHEAD_BYTES
        if value is not None:
            if type(value) is not bytes:
                raise no_bytes("value", value)
            size_bytes += len(value)
        if key is not None:
            if type(key) is not bytes:
                raise no_bytes("key", key)
            size_bytes += len(key)
        if headers:
            size_bytes += sum(len(name) + len(each or b"") for name, each in headers.items())
        if size_bytes > self._plain_bytes_max:
            raise self._refusal(size_bytes)
        if timestamp_us is None:
            timestamp_us = time.time_ns() // 1000
        outbox = self._outbox
        with self._lock:
            if outbox.room_bytes <= 0:
                self._wait_for_room()
            batch, is_new = outbox.add(value, key, headers, timestamp_us, size_bytes)
            if is_new:
                self._gate.notify()
            return Delivery(batch.receipt, len(batch.values) - 1)

    def send_many(self, rows: Rows) -> Delivery:
        """Send rows; return the future of the last one: when it is done, all are.

        `rows` is an Arrow table or batch, a data frame of pandas or polars, or anything that gives
        an Arrow stream, or an iterable of mappings. For a typed stream it has the columns of its
        schema; for any other `value`, and if need be `key`, `headers` and `timestamp`. Waits while
        the buffer is full. Raises what `send` raises, and SchemaError for rows that do not fit.
        """
        if not self._is_begun:
            self._begin()
        last = None
        for encoded in encode_given(rows, self._target, time.time_ns() // 1000):
            with self._lock:
                self._wait_for_room()
                self._outbox.add_encoded(encoded)
                self._gate.notify()
            last = encoded
        return Delivery(*NOTHING if last is None else (last.receipt, last.record_count - 1))

    def flush(self, timeout_ms: float | None = None) -> None:
        """Return when all that was sent before is on disk, as its stream demands.

        Raises the error that ended the producer, DeadlineExceededError after `timeout_ms`; the
        producer goes on then.
        """
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        outbox = self._outbox
        with self._lock:
            number = outbox.seal()
            self._gate.notify()
            while outbox.state is not State.FAILED and not outbox.is_settled_before(number):
                seconds = None if until is None else until - time.monotonic()
                if seconds is not None and seconds <= 0:
                    raise DeadlineExceededError(
                        f"{outbox.unsettled_bytes} bytes for stream {self._stream} are not"
                        f" acknowledged after {timeout_ms} ms; the producer goes on with them"
                    )
                self._gate.wait(seconds)
            if outbox.state is State.FAILED:
                outbox.check_open()

    def close(self) -> None:
        """Send what is there, wait until it is on disk, and end. Idempotent.

        Raises the error that ended the producer.
        """
        with self._lock:
            self._outbox.close()
            self._gate.notify()
        self._gate.join()
        if self._on_close is not None:
            self._on_close(self)
        if self._outbox.error is not None:
            raise self._outbox.error

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Look the stream up, and start the worker."""
        (info,) = self._client.describe_streams([self._stream])
        stream_id = info.stream_id
        bytes_max = (self._client.record_bytes_max([stream_id]))[stream_id]
        schema = None
        with suppress(UnsupportedError):  # servers without typed streams
            versions = self._client.describe_schemas([stream_id], newest_only=True)
            schema = versions[stream_id][-1].schema if versions[stream_id] else None
        with self._lock:
            if self._is_begun:
                return
            self._target = replace(
                self._target, stream_id=stream_id, schema=schema, record_bytes_max=bytes_max
            )
            self._plain_bytes_max = bytes_max if schema is None else 0
            self._is_begun = True
            self._outbox.check_open()
            self._gate.start(self._run)

    def _wait_for_room(self) -> None:
        """Return once a record can be added, with the lock. Raises what ended the producer."""
        while self._outbox.state is State.OPEN and self._outbox.room_bytes <= 0:
            self._gate.wait(None)
        self._outbox.check_open()

    def _refusal(self, size_bytes: int) -> SbpError:
        if self._target.schema is not None:
            return SchemaError(
                f"stream {self._stream} has a schema, and a record of bytes has no columns: pass"
                " rows to send_many"
            )
        fault = record_too_large(size_bytes, self._plain_bytes_max)
        return RecordBatchError(f"the record has {fault}")

    def _run(self) -> None:
        """Append what is sent, until the producer is closed or fails."""
        try:
            self._deliver()
        except SbpError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(SbpError(f"the producer of stream {self._stream} was ended by {error!r}"))
            raise

    def _deliver(self) -> None:
        with self._client.appender(writer=Writer(), on_appended=self._on_appended) as appender:
            is_answered = True
            while (batches := self._next_batches(may_wait=is_answered)) is not None:
                if batches:
                    appender.append([self._encode(each) for each in batches])
                else:
                    appender.flush()
                is_answered = not batches

    def _next_batches(self, *, may_wait: bool) -> list[Outgoing] | None:
        """Return what is to be sent now; None at the end. It is empty only if it may not wait."""
        with self._lock:
            while True:
                batches = self._outbox.take()
                if batches or not may_wait:
                    return batches
                if self._outbox.state is State.CLOSED:
                    return None
                self._gate.wait(self._outbox.seconds_until_due())

    def _encode(self, batch: Outgoing) -> AppendItem:
        target = self._target
        if isinstance(batch, Encoded):
            return AppendItem(target.stream_id, batch.batch)
        encoded = encode_collected(batch, target.stream_id, target.compression)
        return AppendItem(target.stream_id, encoded)

    def _on_appended(self, number: int, outcome: AppendOutcome) -> None:
        with self._lock:
            batch = self._outbox.unsettled(number)
        self._settle(batch, outcome.base_offset)
        with self._lock:
            self._outbox.settle(number)
            self._gate.notify()

    def _fail(self, error: SbpError) -> None:
        with self._lock:
            lost = self._outbox.fail(error)
            self._gate.notify()
        for batch in lost:
            self._settle(batch, -1, error)

    def _settle(self, batch: Outgoing, base_offset: int, error: SbpError | None = None) -> None:
        """Let the futures of a batch be done, and call the callback of the producer."""
        batch.receipt.settle(base_offset, error)
        if self._on_delivery is not None:
            delivered = Delivered(self._stream, base_offset, batch.record_count, error)
            call_back(self._on_delivery, delivered)
