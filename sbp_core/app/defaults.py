"""Every bound and default of consumers and producers; each has its unit in its name."""

from __future__ import annotations

from typing import Final

from sbp_core import limits

COMMIT_INTERVAL_MS: Final = 5_000
"""How often a consumer with a group commits the records that are done."""
MAX_POLL_INTERVAL_MS: Final = 300_000
"""How long a member of a group may work on a record before it loses its streams."""
MANY_RECORDS: Final = 1_000
"""Records that a consumer hands out at a time at most, by default."""
REFRESH_INTERVAL_MS: Final = 5_000
"""How often a consumer looks for new streams that match its patterns."""
FETCH_BYTES: Final = 4 * limits.MIB
"""Bytes of one stream that a consumer fetches at a time."""
FETCH_STREAMS_MAX: Final = 64
"""Streams that a consumer fetches from at a time. The answers are in memory together."""
FETCH_WAIT_MS: Final = 500
"""How long a consumer waits for new records before it looks after other work."""
POLL_PATIENCE_MS: Final = limits.CONNECT_TIMEOUT_MS
POLL_PATIENCE_MS_MAX: Final = 30_000
"""How much longer than its timeout a poll waits for silent servers: at first, and at most."""
END_WAIT_MS: Final = 10_000
"""How long a consumer waits for records that exist, because the stream ends behind them."""

BATCH_BYTES: Final = limits.BATCH_TARGET_BYTES
"""Bytes of records after which a producer sends a record batch."""
BATCH_RECORDS_MAX: Final = 65_536
"""Records after which a producer sends a record batch."""
LINGER_MS: Final = 5
"""How long a record waits for more records at most, while no batch is in flight."""
BUFFER_BYTES: Final = 32 * limits.MIB
"""Unacknowledged bytes of one producer at which `send` waits."""
CUT_BYTES: Final = 4 * limits.MIB
"""Bytes of rows that a producer encodes at a time."""
CUT_ROWS: Final = 8_192
"""Rows that a consumer makes records of at a time."""
RECORD_OVERHEAD_BYTES: Final = 24
"""Bytes of a record beside key, value and headers: offsets, and the time."""
TAKE_BYTES: Final = limits.APPENDS_ON_WAY_BYTES
"""Bytes of records that are encoded and handed to the appender at a time."""

assert BATCH_BYTES <= TAKE_BYTES < BUFFER_BYTES
assert BATCH_RECORDS_MAX <= limits.BATCH_RECORDS_MAX
