"""How far the query of a checkpoint has come in its streams."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sbp_core.client import Client, StreamBounds, StreamInfo
from sbp_spark.checkpoint.files import SbpSource
from sbp_spark.reading.locating import display_name
from sbp_spark.reading.offsets import SourceOffset, find_gone
from sbp_spark.reading.stream_position import StreamPosition

_LEFT_OUT: Final = "no longer selected"


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a query has come in a stream; name, tail and lag if servers were asked.

    What lies below `next_offset` is read for good; None: a range server has been away since the
    query began, so it is not decided yet where reading starts. `begun_offset` is where the
    micro-batch ends that was begun last, None in a stream that it does not read.
    """

    stream_id: int
    next_offset: int | None
    begun_offset: int | None
    remark: str = ""
    stream: str | None = None
    tail_offset: int | None = None
    lag_records: int | None = None


def measure(source: SbpSource, client: Client | None = None) -> list[StreamProgress]:
    """Return how far a query is in each stream, by id; `client` compares that with the streams.

    Raises CheckpointError, and SbpError of the client.
    """
    checkpoint = source.checkpoint
    last = checkpoint.maybe_last_committed
    committed = SourceOffset({}) if last is None else source.offset(last)
    done = {**committed.left_out, **committed.streams}
    newest = source.offset(checkpoint.logged[-1])
    begun = newest.streams
    positions = dict(sorted({**newest.left_out, **begun, **done}.items()))
    pending = [
        StreamProgress(stream_id, None, None, _stalled(newest.stalled[stream_id]))
        for stream_id in sorted(newest.pending)
    ]
    found = [
        StreamProgress(
            stream_id,
            at.next_offset if stream_id in done else at.base_offset or 0,
            begun[stream_id].next_offset if stream_id in begun else None,
            _LEFT_OUT
            if stream_id in newest.left_out
            else _remark(at, newest.stalled.get(stream_id)),
        )
        for stream_id, at in positions.items()
    ]
    if client is None:
        return found + pending
    there = _look(client, positions)
    return [
        _compare(each, positions[each.stream_id], there.get(each.stream_id)) for each in found
    ] + pending


def maybe_put_back(source: SbpSource, client: Client) -> bool | None:
    """Whether the placement driver's metadata lack a commit that the query has seen.

    Then they were put back to an older copy, or are those of another cluster. None: the offset or
    the placement driver tells no commits. Raises CheckpointError, and SbpError of the client.
    """
    commit = source.offset(source.checkpoint.logged[-1]).maybe_commit
    is_there = None if commit is None else client.has_commit(commit)
    return None if is_there is None else not is_there


class _Seen(NamedTuple):
    info: StreamInfo
    bounds: StreamBounds


def _look(client: Client, stream_ids: Collection[int]) -> dict[int, _Seen]:
    """Return those of the streams that exist."""
    infos = [each for each in client.list_streams() if each.stream_id in stream_ids]
    bounds = client.stream_bounds([each.stream_id for each in infos])
    return {info.stream_id: _Seen(info, held) for info, held in zip(infos, bounds, strict=True)}


def _compare(each: StreamProgress, at: StreamPosition, seen: _Seen | None) -> StreamProgress:
    if seen is None or find_gone([at], {each.stream_id: seen.info.created_at_ms}):
        return replace(each, remark="deleted" if seen is None else "created anew since")
    assert each.next_offset is not None, "its start is decided"
    first = max(each.next_offset, seen.bounds.start_offset)
    remark = each.remark
    if first > each.next_offset:
        remark = f"{first - each.next_offset} records were trimmed before they were read"
    if seen.bounds.next_offset < each.next_offset:
        remark = "the stream went backwards"
    return replace(
        each,
        remark=remark,
        stream=display_name(seen.info),
        tail_offset=seen.bounds.next_offset,
        lag_records=max(seen.bounds.next_offset - first, 0),
    )


def _stalled(since_ms: int) -> str:
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"stalled: a range server was away, since {since}"


def _remark(at: StreamPosition, stalled_since_ms: int | None) -> str:
    """Return what reading waits for, or where it is to end, if it is to."""
    if stalled_since_ms is not None:
        return _stalled(stalled_since_ms)
    if at.target_offset is not None:
        return f"an available-now run goes on to {at.target_offset}"
    return "" if at.end_offset is None else f"read up to {at.end_offset} only"
