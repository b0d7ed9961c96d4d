"""Every bound and default of consumers and producers; each has its unit in its name."""

from __future__ import annotations

from typing import Final

from sbp_core import limits

COMMIT_INTERVAL_MS: Final = 5_000
"""How often a consumer with a group commits what is done."""
REFRESH_INTERVAL_MS: Final = 5_000
"""How often a consumer looks for new streams that match its patterns."""
FETCH_BYTES: Final = 4 * limits.MIB
"""Bytes of one stream that a consumer fetches at a time."""
FETCH_STREAMS_MAX: Final = 64
"""Streams of which a consumer fetches at a time: the answers are in memory together."""
FETCH_WAIT_MS: Final = 500
"""How long a consumer waits for new records before it looks after other work."""
END_WAIT_MS: Final = 10_000
"""How long a consumer waits for records before the end of a stream, which must be there."""
