"""Ids that are never given out twice, even by a store that was put back to an older copy.

Ids of streams and range servers, and revisions, count on from the last one. A store that lacks its
latest commits does not know how far they went. So when such a store is accepted it begins a new
epoch: its numbers go on from a block of their own, a random distance above all that it knows.

    what            block (upper bits)   within a block (lower bits)
    stream ids      the epoch            40
    revisions       the epoch            40
    range servers   15 of 31             16

The first epoch is 0, so the ids of a cluster that was never put back are 1, 2, 3. Numbers of
decisions need no epoch: they never leave the placement driver.
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import Final

EPOCH_SHIFT: Final = 40
_EPOCH_STEP_MAX: Final = 1 << 14
_SERVER_SHIFT: Final = 16
_SERVER_STEP_MAX: Final = 1 << 8
SERVER_ID_MAX: Final = 2**31 - 1
"""Ids of range servers are int32 on the wire."""


def current_epoch(connection: sqlite3.Connection) -> int:
    """Return the number of the epoch, 0 for the first one."""
    ((last_stream_id,),) = connection.execute("SELECT last_stream_id FROM cluster")
    return int(last_stream_id) >> EPOCH_SHIFT


def begin_epoch(connection: sqlite3.Connection, above: int) -> int:
    """Begin a new epoch, above a known one, within a transaction; return its number."""
    ((last_server_id,),) = connection.execute("SELECT last_server_id FROM cluster")
    known = max(above, current_epoch(connection))
    epoch = known + 1 + secrets.randbelow(_EPOCH_STEP_MAX)
    block = (int(last_server_id) >> _SERVER_SHIFT) + 1 + secrets.randbelow(_SERVER_STEP_MAX)
    connection.execute(
        "UPDATE cluster SET last_stream_id = ?, revision = ?, last_server_id = ?",
        (
            epoch << EPOCH_SHIFT,
            epoch << EPOCH_SHIFT,
            min(block << _SERVER_SHIFT, SERVER_ID_MAX),
        ),
    )
    return epoch
