"""Every bound and default of consumers and producers; each has its unit in its name."""

from __future__ import annotations

from typing import Final

from sbp_core import limits

COMMIT_INTERVAL_MS: Final = 5_000
"""How often a consumer with a group commits what is done."""
MAX_POLL_INTERVAL_MS: Final = 300_000
"""How long a member of a group may work on a record before it loses its streams."""
MANY_RECORDS: Final = 1_000
"""Records that a consumer hands out at a time at most, by default."""
REFRESH_INTERVAL_MS: Final = 5_000
"""How often a consumer looks for new streams that match its patterns."""
FETCH_BYTES: Final = 4 * limits.MIB
"""Bytes of one stream that a consumer fetches at a time."""
FETCH_STREAMS_MAX: Final = 64
"""Streams of which a consumer fetches at a time: the answers are in memory together."""
FETCH_WAIT_MS: Final = 500
"""How long a consumer waits for new records before it looks after other work."""
POLL_PATIENCE_MS: Final = limits.CONNECT_TIMEOUT_MS
POLL_PATIENCE_MS_MAX: Final = 30_000
"""How much longer than its timeout a poll waits for servers that do not answer, at first and later.
"""
END_WAIT_MS: Final = 10_000
"""How long a consumer waits for records before the end of a stream, which must be there."""

BATCH_BYTES: Final = limits.BATCH_TARGET_BYTES
"""Bytes of records after which a producer sends a record batch."""
BATCH_RECORDS_MAX: Final = 65_536
"""Records after which it does."""
LINGER_MS: Final = 5
"""How long a record waits for others at most, while nothing is on its way."""
BUFFER_BYTES: Final = 32 * limits.MIB
"""Bytes of records of one producer that are not acknowledged; `send` waits at this bound."""
CUT_BYTES: Final = 4 * limits.MIB
"""Bytes of rows that a producer encodes, and rows that a consumer makes records of, at a time."""
CUT_ROWS: Final = 8_192
RECORD_OVERHEAD_BYTES: Final = 24
"""Bytes of a record beside key, value and headers: offsets, and its time."""
TAKE_BYTES: Final = limits.APPENDS_ON_WAY_BYTES
"""Bytes of records that are encoded and handed to the appender at a time."""

assert BATCH_BYTES <= TAKE_BYTES < BUFFER_BYTES
assert BATCH_RECORDS_MAX <= limits.BATCH_RECORDS_MAX
