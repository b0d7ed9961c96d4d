"""What is known of the writers of streams, in the metadata file.

Of each stream only the writers at the end of its last sealed range are kept: the next range begins
with them.
"""

from __future__ import annotations

from sbp_core.log.states.writer_states import NO_WRITERS
from sbp_core.pd.metadata.sqlite_file import Query
from sbp_core.pd.model import SealedRange


def record_writers(query: Query, sealed: SealedRange) -> None:
    """Keep the writers at the end of a range that was sealed.

    A server that tells none took none: then it is those before the range.
    """
    stream_id, range_index, _, writers = sealed
    before = NO_WRITERS if range_index == 0 else writers_before(query, stream_id, range_index)
    if writers or before:
        query(
            "INSERT OR REPLACE INTO writers VALUES (?, ?, ?)",
            stream_id,
            range_index,
            writers or before,
        )


def writers_before(query: Query, stream_id: int, range_index: int) -> bytes:
    """Return the writers at the end of the range before, empty if that is not known."""
    rows = query(
        "SELECT writers FROM writers WHERE stream_id = ? AND range_index = ?",
        stream_id,
        range_index - 1,
    )
    return bytes(rows[0][0]) if rows else b""
