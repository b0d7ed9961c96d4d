"""Encode the states of ranges as columns, for snapshots, index files and high-water marks.

A snapshot, the first group of a segment, has the states of all ranges in chunks, behind writers and
transactions (state_snapshot.py). Each chunk is a SNAPSHOT entry: `base_offset` is the number of
ranges in all chunks, `count` the number in this chunk. Its body is columns of `count` values each,
little-endian, one after the other: stream_id i64, start_offset i64, next_offset i64, range_index
i32, state_code u8, created_at_ms i64, seq i64, highest_seq i64, and 16 bytes of digest. The last
three columns are left out if no range is replicated; seq is -1 for a range that is not replicated.
created_at_ms is left out, too, if it is unknown for all ranges, as in logs of earlier versions. The
state codes are OPEN 0, SEALED 1, DELETED 2, FENCED 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sbp_core.errors import LogCorruptionError
from sbp_core.log.states.range_states import NO_TIME, STATE_CODES, LoggedRange
from sbp_core.log.states.replicated_entries import decoded_prefix
from sbp_core.replication import DIGEST_BYTES

STATE_COLUMNS: Final = (
    ("stream_id", np.dtype("<i8")),
    ("start_offset", np.dtype("<i8")),
    ("next_offset", np.dtype("<i8")),
    ("range_index", np.dtype("<i4")),
    ("state_code", np.dtype("u1")),
)
"""The columns that index files have as well."""
REPLICA_COLUMNS: Final = (
    ("seq", np.dtype("<i8")),
    ("highest_seq", np.dtype("<i8")),
    ("digest", np.dtype(f"V{DIGEST_BYTES}")),
)
"""Further columns, if any range is replicated."""
_DATED_COLUMNS: Final = (*STATE_COLUMNS, ("created_at_ms", np.dtype("<i8")))
_ALL_COLUMNS: Final = (*_DATED_COLUMNS, *REPLICA_COLUMNS)


def encode_states(ranges: Sequence[LoggedRange]) -> bytes:
    """Return the columns of `ranges`."""
    columns: Sequence[tuple[str, np.dtype[Any]]] = STATE_COLUMNS
    if any(logged.prefix is not None for logged in ranges):
        columns = _ALL_COLUMNS
    elif any(logged.created_at_ms != NO_TIME for logged in ranges):
        columns = _DATED_COLUMNS
    return b"".join(
        np.array([getattr(logged, name) for logged in ranges], dtype).tobytes()
        for name, dtype in columns
    )


def states_lengths(count: int) -> tuple[int, ...]:
    """Return the possible lengths in bytes of the columns of `count` ranges, longest first."""
    forms = (_ALL_COLUMNS, _DATED_COLUMNS, STATE_COLUMNS)
    return tuple(count * _bytes_of(columns) for columns in forms)


def decode_states(data: memoryview, count: int) -> list[LoggedRange]:
    """Return `count` ranges from their columns; the last columns may be missing.

    Raises LogCorruptionError.
    """
    lengths = states_lengths(count)
    if len(data) not in lengths:
        raise LogCorruptionError(f"{count} states take {lengths[1]} bytes, not {len(data)}")
    columns: list[list[Any]] = []
    start = 0
    for _, dtype in _ALL_COLUMNS:
        if start == len(data):
            break
        columns.append(np.frombuffer(data, dtype, count, start).tolist())
        start += count * dtype.itemsize
    return ranges_of(*columns)


def ranges_of(  # noqa: PLR0917 - the columns, in their order
    stream_ids: Sequence[int] = (),
    starts: Sequence[int] = (),
    nexts: Sequence[int] = (),
    indexes: Sequence[int] = (),
    codes: Sequence[int] = (),
    times: Sequence[int] = (),
    *numbers: Sequence[Any],
) -> list[LoggedRange]:
    """Return ranges from columns; the last columns may be missing.

    Raises LogCorruptionError for an unknown state.
    """
    if max(codes, default=0) >= len(STATE_CODES):
        raise LogCorruptionError(f"{max(codes)} is no state of a range")
    states = [STATE_CODES[code] for code in codes]
    fields = [stream_ids, indexes, starts, nexts, states, times or [NO_TIME] * len(codes)]
    if numbers:
        seqs, highest_seqs, digests = numbers
        fields.append(
            [
                None if seq < 0 else decoded_prefix(seq, digest)
                for seq, digest in zip(seqs, digests, strict=True)
            ]
        )
        fields.append(highest_seqs)
    return list(map(LoggedRange, *fields))


def _bytes_of(columns: Sequence[tuple[str, np.dtype[Any]]]) -> int:
    return sum(dtype.itemsize for _, dtype in columns)
