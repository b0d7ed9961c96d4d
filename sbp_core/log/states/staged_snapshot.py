"""What is known of transactions, as a segment begins with it: in SNAPSHOT_STAGED entries.

They stand between those of writers and those of ranges, unless there is nothing to say. Their
bodies, put together, are records one after the other, big-endian; `base_offset` is the number of
the entries, `range_index` counts them. A record begins

    0     kind         u8   0 what is staged, 1 an end that dropped, 2 one that published
    1-8   stream_id    i64
    9-12  range_index  i32

Of what is staged follow the time of the first batch (u64, ms since the epoch), the number of
batches (u32), the id (its length u8 in front), and the batches as a TXN_END has them. Of an end
follow its time (u64), the number of ids (u32), base_offset i64, record count u32, and the ids.
"""

from __future__ import annotations

import struct
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogCorruptionError
from sbp_core.log.entry import Entry, EntryKind
from sbp_core.log.states.staged_entries import (
    STAGED_BATCH_BYTES,
    decode_columns,
    decode_txn_id,
    encode_txn_id,
    unpack,
)
from sbp_core.log.states.staged_states import StagedStates, Staging, TxnEnd

_RECORD: Final = struct.Struct(">BqiQI")
_END: Final = struct.Struct(">qI")
_STAGING, _DROP, _COMMIT = range(3)


def encode_staged_snapshot(states: StagedStates) -> list[Entry]:
    """Return the SNAPSHOT_STAGED entries of `states`, none where nothing is known."""
    records = [_encode_staging(staging) for staging in states.stagings()]
    for stream_id in states.stream_ids():
        records += [_encode_end(stream_id, end) for end in states.ends(stream_id)]
    octets = memoryview(b"".join(records))
    step = limits.SNAPSHOT_STAGED_BYTES
    chunks = [octets[start : start + step] for start in range(0, len(octets), step)]
    return [
        Entry(EntryKind.SNAPSHOT_STAGED, 0, at, len(chunks), 0, chunk)
        for at, chunk in enumerate(chunks)
    ]


def decode_staged_snapshot(octets: bytes) -> StagedStates:
    """Return what the bodies of the entries of a snapshot say. Raises LogCorruptionError."""
    states = StagedStates()
    data, position = memoryview(octets), 0
    while position < len(data):
        kind, stream_id, range_index, time_ms, count = unpack(_RECORD, data, position)
        position += _RECORD.size
        if kind == _STAGING:
            txn_id, position = decode_txn_id(data, position)
            end = position + count * STAGED_BATCH_BYTES
            batches = decode_columns(data[position:end], count)
            states.restore(Staging(stream_id, range_index, txn_id, time_ms, batches))
            position = end
        elif kind in (_DROP, _COMMIT):
            base_offset, record_count = unpack(_END, data, position)
            position += _END.size
            txn_ids = []
            for _ in range(count):
                txn_id, position = decode_txn_id(data, position)
                txn_ids.append(txn_id)
            ended = (tuple(txn_ids), kind == _COMMIT, range_index)
            states.restore_end(stream_id, TxnEnd(*ended, base_offset, record_count, time_ms))
        else:
            raise LogCorruptionError(f"a snapshot has a record of kind {kind} of transactions")
    return states


def _encode_staging(staging: Staging) -> bytes:
    place = (staging.stream_id, staging.range_index)
    head = _RECORD.pack(_STAGING, *place, staging.staged_at_ms, staging.batch_count)
    return head + encode_txn_id(staging.txn_id) + staging.batches.encode()


def _encode_end(stream_id: int, end: TxnEnd) -> bytes:
    kind = _COMMIT if end.is_commit else _DROP
    head = _RECORD.pack(kind, stream_id, end.range_index, end.time_ms, len(end.txn_ids))
    place = _END.pack(end.base_offset, end.record_count)
    return head + place + b"".join(map(encode_txn_id, end.txn_ids))
