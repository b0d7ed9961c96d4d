"""Trimming what was in streams before a write, once its own rows can be read.

The tasks say where the streams that they write to ended before the commit. So whenever that is
trimmed, and however often, no row of the write itself is among it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyspark.sql.datasource import WriterCommitMessage

from sbp_core import limits
from sbp_core.client import RangeInfo, StreamBounds
from sbp_core.errors import SbpError
from sbp_spark.options import BatchKey, OnReplayMismatch
from sbp_spark.writing.committing import CommittingClient, commit_staged, staged_messages

PUBLISH_WAIT_MS: Final = limits.RETRY_BUDGET_MS
"""How long rows that are committed may take until they can be read."""
_PAUSE_S: Final = 0.1


class BoundsClient(Protocol):
    """What is needed of a client to say what is to be trimmed."""

    def stream_bounds(self, stream_ids: Sequence[int]) -> list[StreamBounds]:
        """Return where each stream begins and ends now."""
        ...


class TrimmingClient(CommittingClient, Protocol):
    """What is needed of a client to commit a write, and to trim what was there before."""

    def trim_streams(self, offsets: Mapping[int, int]) -> dict[int, RangeInfo]:
        """Forget the records of streams, by id, below an offset."""
        ...


class NotTrimmedError(SbpError):
    """The rows of a write are committed, and what was there before them is still there, too."""


def tails_of(client: BoundsClient, stream_ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (stream id, where it ends now)."""
    if not stream_ids:
        return ()
    return tuple((each.stream_id, each.next_offset) for each in client.stream_bounds(stream_ids))


def commit_and_trim(
    client: TrimmingClient,
    messages: Sequence[WriterCommitMessage | None],
    key: BatchKey,
    on_mismatch: OnReplayMismatch,
) -> None:
    """Commit as `commit_staged` does; when the rows can be read, trim what was there before.

    May be repeated. Raises SbpError, and NotTrimmedError if the rows cannot be read for long, or
    some of them were lost.
    """
    give_up_at = time.monotonic() + PUBLISH_WAIT_MS / 1_000
    while True:
        decision = commit_staged(client, messages, key, on_mismatch)
        if decision.lost:
            raise NotTrimmedError(
                f"{key} is committed, but a range server lost"
                f" {sum(part.record_count for part in decision.lost)} of its rows, which were given"
                " up; so what was there before was not trimmed: write again"
            )
        if decision.is_published:
            break
        if time.monotonic() >= give_up_at:
            raise NotTrimmedError(
                f"{key} is committed, and its rows will be there, but after"
                f" {PUBLISH_WAIT_MS / 1_000:g} s not all of them can be read; so what was there"
                f" before was not trimmed. `sbp txns {key.producer}` tells what they wait for; when"
                " it tells that the batch is published, write again"
            )
        time.sleep(_PAUSE_S)
    tails: dict[int, int] = {}
    for message in staged_messages(messages):
        for stream_id, tail in message.tails:
            tails[stream_id] = max(tail, tails.get(stream_id, 0))
    if not tails:
        return
    try:
        client.trim_streams(tails)
    except SbpError as error:
        raise NotTrimmedError(
            f"{key} is committed, but what was there before could not be trimmed from all streams,"
            f" so that their readers see both: {error}; write again"
        ) from error
