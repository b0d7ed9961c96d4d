"""Rows in, acknowledged records of a stream out: in their order, and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from sbp_core.app.encoding import Target
from sbp_core.cli.produce.delivery import Delivery, OnAcknowledged
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.wording import counted


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
