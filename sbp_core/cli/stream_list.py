"""`sbp streams list`: the streams with their records, bytes, retention and last append."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import click

from sbp_core import limits
from sbp_core.app.positions import Selection
from sbp_core.cli.client_options import ClientOptions, client_options
from sbp_core.cli.connect import connect, find_reach, find_sizes
from sbp_core.cli.group_lag import show_age
from sbp_core.cli.output import show_time, write_json, write_table
from sbp_core.cli.values import STREAM
from sbp_core.client import Client, Reach, StreamInfo
from sbp_core.errors import NotFoundError, PermissionDeniedError
from sbp_core.quantities import round_size, show_retention

_HEADING = ("ID", "NAME", "RECORDS", "SIZE", "LAST APPEND", "REPLICAS", "RETENTION", "CREATED")


@dataclass(frozen=True, slots=True)
class _Listed:
    """A stream; None is what its servers did not tell.

    `appended_at_ms` is None for an empty stream, too.
    """

    info: StreamInfo
    at: Reach
    size_bytes: int | None
    appended_at_ms: int | None

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no records."""
        return self.at.next_offset == self.at.start_offset

    def as_object(self) -> dict[str, object]:
        """Return the stream for programs."""
        return {
            **asdict(self.info),
            "start_offset": self.at.start_offset,
            "next_offset": self.at.next_offset,
            "stored_bytes": self.size_bytes,
            "last_append_ms": self.appended_at_ms,
        }

    def as_row(self, now_ms: int) -> tuple[object, ...]:
        """Return the stream for people."""
        held = self.at.readable_end - self.at.start_offset
        return (
            self.info.stream_id,
            self.info.name or "-",
            held if self.at.next_offset is not None else f">={held}",
            "-" if self.size_bytes is None else round_size(self.size_bytes),
            self._last_append(now_ms),
            self.info.replica_count,
            show_retention(self.info.retention_period_ms, self.info.retention_bytes),
            show_time(self.info.created_at_ms),
        )

    def _last_append(self, now_ms: int) -> str:
        if self.is_empty:
            return "-"
        return "unknown" if self.appended_at_ms is None else show_age(self.appended_at_ms, now_ms)


@click.command("list")
@click.argument("patterns", type=STREAM, nargs=-1, metavar="[PATTERN]...")
@client_options
def list_streams(options: ClientOptions, patterns: Sequence[str]) -> int:
    """List streams, by id: all, or those with these names, or that match orders-*."""
    selection = Selection.of(patterns) if patterns else None
    with connect(options) as client:
        found = _find(client, selection)
    if options.json:
        for each in found:
            write_json(each.as_object())
        return 0
    now_ms = time.time_ns() // 1_000_000
    write_table(_HEADING, [each.as_row(now_ms) for each in found])
    return 0


def _find(client: Client, selection: Selection | None) -> list[_Listed]:
    """Return the streams that are wanted, with what their servers say soon."""
    while True:
        listed = client.list_streams()
        infos = listed if selection is None else selection.of_streams(listed)
        stream_ids = [each.stream_id for each in infos]
        try:
            reaches, sizes = find_reach(client, stream_ids), find_sizes(client, stream_ids)
            times = _last_appends(client, reaches.values())
        except NotFoundError:
            continue  # one was deleted in between
        return [
            _Listed(each, reaches[key], sizes.get(key), times.get(key))
            for key, each in zip(stream_ids, infos, strict=True)
        ]


def _last_appends(client: Client, reaches: Iterable[Reach]) -> dict[int, int | None]:
    """Return when the last records were appended, by stream id, where servers tell it soon.

    That is told to who may read: if there is a stream that the caller may not, nothing is known.
    """
    lasts = {
        each.stream_id: each.next_offset - 1
        for each in reaches
        if each.next_offset is not None and each.next_offset > each.start_offset
    }
    try:
        return client.append_times(lasts, timeout_ms=limits.CONNECT_TIMEOUT_MS)
    except PermissionDeniedError:
        return {}
