"""The target of entries that another range server sends: REPLICATE, and answers to READ_ENTRIES.

The checksum is right for any bytes: a hostile peer can compute it, too.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import cache
from pathlib import Path

from sbp_core.errors import SbpError
from sbp_core.log.entry import Entry
from sbp_core.log.portable import decode_portable, encode_portable, to_local
from sbp_core.log.states.range_states import range_created
from sbp_core.log.states.staged_states import commit_entry, drop_entry, staged_entry
from sbp_core.log.states.writer_states import WriterState, encode_writers, mark_of
from sbp_core.rangeserver.replicating.secondary import check_content
from sbp_core.records import write_base_offset
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import crc32c
from tests.support.cluster import rows_batch
from tests.support.disk import FaultyDisk
from tests.support.log import open_log

KEY = (1, 0)
_FOLDER = Path("/log")
_FRONT = struct.Struct(">II")
_FIELDS_BYTES = 25
"""Those between the checksum of an entry and its content."""


def _rows(base_offset: int) -> bytes:
    batch = bytearray(rows_batch([b"a", b"b"], KEY[0]))
    write_base_offset(batch, base_offset)
    return bytes(batch)


@cache
def _first() -> Entry:
    return Entry(EntryKind.BATCH, *KEY, 0, 2, _rows(0))


def entries_corpus() -> list[bytes]:
    """An entry of each kind, without what the check adds."""
    writers = encode_writers([WriterState("w", 3, ())])
    entries = [
        _first(),
        mark_of(_first(), "w", 0),
        Entry(EntryKind.RANGE_WRITERS, *KEY, 0, 1, writers),
        staged_entry(*KEY, "t", 0, 2, _rows(0)),
        drop_entry(*KEY, ["t"]),
        commit_entry(*KEY, 0, []),
    ]
    return [b"".join(encode_portable(entry))[_FRONT.size :] for entry in entries]


def check_entries(data: bytes) -> None:
    """They are refused, or a log that has them can be written and opened."""
    length = struct.pack(">I", max(0, len(data) - _FIELDS_BYTES))
    whole = length + struct.pack(">I", crc32c((length, data))) + data
    try:
        entries = decode_portable(memoryview(whole))
        for entry in entries:
            check_content(entry)
    except SbpError:
        return
    if entries[-1].kind is EntryKind.WRITER_MARK:
        entries.append(_first())
    disk = FaultyDisk()
    with open_log(disk, _FOLDER) as log, suppress(SbpError):
        log.append([range_created(*KEY, 0, 0, is_replicated=True)])
        log.append([to_local(entry, log.staged) for entry in entries])
    open_log(disk, _FOLDER).close()
