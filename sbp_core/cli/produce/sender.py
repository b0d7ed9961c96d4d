"""Rows in, acknowledged records of a stream out: in their order, and counted.

Record batches go out by an appender, or by commits of a named producer.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import pyarrow as pa

from sbp_core.app.blocking import Committer
from sbp_core.app.encoding import Target
from sbp_core.cli.output import write_notice
from sbp_core.cli.produce.inputs import Opened
from sbp_core.cli.progress import BYTES, progress
from sbp_core.client import AppendItem, AppendOutcome, Client, Writer
from sbp_core.errors import RecordBatchError, SchemaError, UnsupportedError
from sbp_core.records import peek_batch
from sbp_core.wording import counted

OnAcknowledged = Callable[[int, int | None], None]
"""Is called with a number of records, and the offset of the first one, if that is known."""


class Delivery(Protocol):
    """Where record batches of one stream go, in their order."""

    def send(self, batches: Sequence[bytes]) -> None:
        """Send batches; they may be acknowledged later. Raises SbpError."""

    def settle(self) -> None:
        """Return when all that was sent is acknowledged. Raises SbpError."""


class Appending:
    """Appends each batch once, several at a time; more than once only if servers cannot do that."""

    def __init__(self, client: Client, stream_id: int, on_acknowledged: OnAcknowledged) -> None:
        self._client = client
        self._stream_id = stream_id
        self._on_acknowledged = on_acknowledged
        self._given_count = 0
        self._record_counts: dict[int, int] = {}
        """By number: of the batches that were given to the appender, and are not acknowledged."""
        self._is_numbered = True
        self._appender = client.appender(writer=Writer(), on_appended=self._on_appended)

    def send(self, batches: Sequence[bytes]) -> None:
        """Send batches; most of those before are acknowledged then. Raises SbpError."""
        if batches:
            self._append([AppendItem(self._stream_id, each) for each in batches])

    def settle(self) -> None:
        """Return when all that was sent is acknowledged. Raises SbpError."""
        self._append([])

    def _append(self, items: Sequence[AppendItem]) -> None:
        """Give batches to the appender; none to wait for the acknowledgement of all."""
        for each in items:
            self._record_counts[self._given_count] = peek_batch(each.batch).record_count
            self._given_count += 1
        try:
            self._appender.append(items)
        except UnsupportedError:
            if not self._is_numbered:
                raise
            write_notice(
                "the server has no idempotent appends: records may be duplicated if a connection"
                " breaks"
            )
            self._is_numbered = False
            unsettled = self._appender.unacknowledged
            self._appender = self._client.appender(
                retry_unknown=True, on_appended=self._on_appended
            )
            self._given_count, self._record_counts = 0, {}
            self._append(unsettled)
            if not items:
                self._append([])

    def _on_appended(self, number: int, outcome: AppendOutcome) -> None:
        self._on_acknowledged(self._record_counts.pop(number), outcome.base_offset)


class Committing:
    """Commits batches under the id of a producer, which counts them; offsets are not known."""

    def __init__(self, committer: Committer, on_acknowledged: OnAcknowledged) -> None:
        self._committer = committer
        self._on_acknowledged = on_acknowledged

    def send(self, batches: Sequence[bytes]) -> None:
        """Commit batches, all or none. Raises SbpError."""
        if batches:
            count = sum(peek_batch(each).record_count for each in batches)
            self._committer.commit(batches, count)
            self._on_acknowledged(count, None)

    def settle(self) -> None:
        """Return: what was sent is committed."""


class Sender:
    """Makes record batches of rows, and sends them.

    `skipped_count` records of the input are left out: they are in the stream already. Rows that
    cannot be sent are refused by the number of the first, once all before it were added.
    """

    def __init__(
        self,
        target: Target,
        deliver_to: Callable[[OnAcknowledged], Delivery],
        skipped_count: int = 0,
    ) -> None:
        self._builder = target.builder()
        self._delivery: Final = deliver_to(self._on_acknowledged)
        self.left_to_skip = skipped_count
        """Records that are to be left out and were not in the input yet."""
        self._skipped_count = 0
        self._added_count = 0
        self.is_cut_short = False
        """Whether an append failed or was interrupted: more may be there than is acknowledged."""
        self.record_count = 0
        """Records that are acknowledged."""
        self.first_offset: int | None = None
        self.last_offset: int | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows; send the record batches that are full.

        Raises RecordBatchError for a record that cannot be sent, else SbpError.
        """
        skipped = min(self.left_to_skip, rows.num_rows)
        self.left_to_skip -= skipped
        self._skipped_count += skipped
        if skipped < rows.num_rows:
            self._add(rows.slice(skipped))

    def flush(self) -> None:
        """Send what waits for a fuller record batch; return when everything is acknowledged.

        Raises SbpError. Does nothing if an append was cut short.
        """
        if not self.is_cut_short:
            self._send(self._builder.flush(), is_last=True)
            assert self.record_count == self._added_count

    def report(self) -> str:
        """Return how many records are acknowledged, and up to which offset."""
        last = "" if self.last_offset is None else f", the last one at offset {self.last_offset}"
        return f"{counted(self.record_count, 'record')}{last}"

    def _add(self, rows: pa.RecordBatch) -> None:
        """Add rows, up to the first that cannot be sent: halves of them, to find it."""
        try:
            full = self._builder.add(rows, timestamp_ms=time.time_ns() // 1_000_000)
        except (RecordBatchError, SchemaError) as error:
            if rows.num_rows == 1:
                number = self._skipped_count + self._added_count + 1
                raise RecordBatchError(f"record {number}: {error}") from error
            half = rows.num_rows // 2
            self._add(rows.slice(0, half))
            self._add(rows.slice(half))
            return
        self._added_count += rows.num_rows
        self._send(full)

    def _send(self, batches: Sequence[bytes], *, is_last: bool = False) -> None:
        self.is_cut_short = True
        self._delivery.send(batches)
        if is_last:
            self._delivery.settle()
        self.is_cut_short = False

    def _on_acknowledged(self, count: int, base_offset: int | None) -> None:
        self.record_count += count
        if base_offset is not None:
            if self.first_offset is None:
                self.first_offset = base_offset
            self.last_offset = base_offset + count - 1


@contextmanager
def shown_progress(source: Opened, sender: Sender) -> Iterator[Callable[[], None]]:
    """Show how much of a file is read, and how many records are acknowledged.

    Yields the function to call from time to time. With a pipe as input only the records are shown,
    and with a terminal nothing, because the user types the records there.
    """
    if os.isatty(source.descriptor):
        yield lambda: None
        return
    found = os.fstat(source.descriptor)
    is_file = stat.S_ISREG(found.st_mode)
    with progress(BYTES if is_file else "records") as report:

        def show() -> None:
            if is_file:
                read_bytes = os.lseek(source.descriptor, 0, os.SEEK_CUR)
                report(read_bytes, found.st_size, counted(sender.record_count, "record"))
            else:
                report(sender.record_count, None, "")

        yield show
