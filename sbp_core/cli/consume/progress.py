"""How much of the wanted records is read, on a terminal, in the bytes that they take in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sbp_core.app.record import Batch
from sbp_core.cli.connect import find_reach, find_sizes
from sbp_core.cli.consume.spans import Plan
from sbp_core.cli.progress import BYTES, OnProgress, is_shown, progress
from sbp_core.client import Client
from sbp_core.errors import SbpError
from sbp_core.wording import counted


@contextmanager
def shown_progress(
    client: Client, *, is_wanted: bool, has_end: bool
) -> Iterator[Callable[[Plan, Batch], None]]:
    """Show how many bytes are read, of how many if the wanted records `has_end`.

    Yields the function to call with each batch that is written. Without a terminal, or if progress
    is not wanted, nothing is shown and no server is asked.
    """
    if not (is_wanted and is_shown()):
        yield lambda plan, batch: None
        return
    with progress(BYTES) as report:
        yield _Meter(client, report, has_end=has_end).on_written


class _Meter:
    """Estimates bytes from records: all records of a stream are taken to be of the same size."""

    def __init__(self, client: Client, report: OnProgress, *, has_end: bool) -> None:
        self._client = client
        self._report = report
        self._has_end = has_end
        self._is_measured = False
        self._record_bytes: dict[str, float] = {}
        self._total: int | None = None
        self._record_count = 0
        self._done = 0.0

    def on_written(self, plan: Plan, batch: Batch) -> None:
        """Report the bytes of all batches until now."""
        if not self._is_measured:
            self._is_measured = True
            with suppress(SbpError):  # progress is not worth the end of the command
                self._measure(plan)
        self._record_count += len(batch)
        self._done += len(batch) * self._record_bytes.get(batch.stream, 0)
        self._report(int(self._done), self._total, counted(self._record_count, "record"))

    def _measure(self, plan: Plan) -> None:
        ids = [*plan.spans]
        sizes, reaches, total = find_sizes(self._client, ids), find_reach(self._client, ids), 0.0
        for info in self._client.describe_streams(ids):
            at, span = reaches[info.stream_id], plan.spans[info.stream_id]
            count = max(at.readable_end - at.start_offset, 1)
            size = sizes.get(info.stream_id, 0) / count
            self._record_bytes[info.label] = size
            total += size * ((span.end_offset or at.readable_end) - span.start_offset)
        self._total = int(total) if self._has_end and total else None
