"""Transactions as their page shows them: the open ones first, with what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core.client import StreamInfo, TxnInfo, TxnPart
from sbp_core.client.txn_remarks import ADVICE
from sbp_core.web.console.words import counted

STATES: Final = ("stuck", "lost", "publishing", "staged", "aborted", "published")
"""In the order of the page: what needs somebody is first."""
_OVER: Final = frozenset({"aborted", "published"})
_GIVEN_UP_WHEN: Final = "stuck"
ROWS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The records of a transaction in one stream; `record_count` is None if it is not known."""

    stream_id: int
    stream: str
    record_count: int | None


@dataclass(frozen=True, slots=True)
class TxnRow:
    """A transaction. `age_ms` counts from its decision, or from its first batch if it is staged."""

    state: str
    producer: str | None
    batch_number: int | None
    record_count: int | None
    hidden: tuple[StreamPart, ...]
    lost: tuple[StreamPart, ...]
    age_ms: int | None
    server: str | None
    txn_id: str | None
    can_give_up: bool


@dataclass(frozen=True, slots=True)
class StateGroup:
    """The transactions in a state: how many, what to do about them, and some of them."""

    state: str
    count: int
    advice: str
    rows: tuple[TxnRow, ...]


def group_by_state(
    txns: Sequence[TxnInfo],
    streams: Mapping[int, StreamInfo],
    now_ms: int,
    *,
    is_open_only: bool,
) -> list[StateGroup]:
    """Return the transactions by state, those that need somebody first.

    ROWS_MAX of a state are shown: the oldest, or the newest of those that are over.
    """
    counts = Counter(txn.state for txn in txns)
    named = [*STATES, *sorted(counts.keys() - set(STATES))]  # a later release may know others
    groups = []
    for state in named:
        if not counts[state] or (is_open_only and state in _OVER):
            continue
        found = [txn for txn in txns if txn.state == state]
        found.sort(key=_since_ms, reverse=state in _OVER)
        rows = tuple(_row(txn, streams, now_ms) for txn in found[:ROWS_MAX])
        groups.append(StateGroup(state, counts[state], ADVICE.get(state, ""), rows))
    return groups


def shown_streams(txns: Sequence[TxnInfo]) -> list[int]:
    """Return the ids of the streams whose names the page shows."""
    parts = (part for txn in txns for part in (*txn.parts, *txn.lost))
    return sorted({part.stream_id for part in parts if part.stream_id >= 0})


def maybe_stuck(txns: Sequence[TxnInfo], batch_number: int) -> TxnInfo | None:
    """Return the batch of a producer that can be given up; None if it cannot."""
    found = (txn for txn in txns if txn.batch_number == batch_number)
    return next((txn for txn in found if txn.state == _GIVEN_UP_WHEN), None)


def describe_loss(txn: TxnInfo, streams: Mapping[int, StreamInfo]) -> list[str]:
    """Return what giving a stuck batch up can lose, a sentence for each stream."""
    return [
        f"stream {part.stream}: up to {counted(part.record_count, 'record')} lost permanently"
        if part.record_count is not None
        else f"stream {part.stream}: records lost permanently, their number is not known"
        for part in _by_stream(txn.parts, streams)
    ]


def _row(txn: TxnInfo, streams: Mapping[int, StreamInfo], now_ms: int) -> TxnRow:
    since_ms = _since_ms(txn)
    parts = (*txn.parts, *txn.lost)
    return TxnRow(
        txn.state,
        txn.producer,
        txn.batch_number,
        txn.record_count,
        _by_stream(txn.parts, streams),
        _by_stream(txn.lost, streams),
        max(now_ms - since_ms, 0) if since_ms else None,
        txn.server,
        parts[0].txn_id if parts else None,
        txn.state == _GIVEN_UP_WHEN and txn.producer is not None and txn.batch_number is not None,
    )


def _since_ms(txn: TxnInfo) -> int:
    """Return when the state began, 0 if that is not known."""
    since_ms = txn.staged_at_ms if txn.decided_at_ms is None else txn.decided_at_ms
    return since_ms or 0


def _by_stream(
    parts: Sequence[TxnPart], streams: Mapping[int, StreamInfo]
) -> tuple[StreamPart, ...]:
    """Add up the parts in each stream."""
    counts: dict[int, int | None] = {}
    for part in parts:
        if part.stream_id < 0:
            continue
        so_far = counts.get(part.stream_id, 0)
        is_known = so_far is not None and part.record_count >= 0
        counts[part.stream_id] = (so_far or 0) + part.record_count if is_known else None
    return tuple(
        StreamPart(
            stream_id, streams[stream_id].label if stream_id in streams else str(stream_id), count
        )
        for stream_id, count in counts.items()
    )
