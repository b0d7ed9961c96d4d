"""The limits that follow from the largest record that a server accepts.

A record fits into a batch, a batch into a frame and an entry of the log, and a frame into each
budget that it counts for. So a server that allows larger records has these limits larger by as
much, or by twice as much where two such frames have to fit beside each other:

    | limit                 | is larger by |
    |-----------------------|--------------|
    | batch                 | 1            |
    | frame                 | 1            |
    | segment, at least     | 1            |
    | group commit          | 1            |
    | pending appends       | 1            |
    | in flight, connection | 1            |
    | in flight, server     | 2            |
    | unread answers        | 2            |

Readers accept the largest size, whatever the setting is: see `LARGEST`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core import limits


@dataclass(frozen=True, slots=True)
class RecordSizes:
    """The limits, in bytes, where records have up to `record_bytes`.

    With the default they are those of `limits`. A value outside of RECORD_BYTES_MAX to
    RECORD_BYTES_LARGEST counts as the nearer bound.
    """

    record_bytes: int = limits.RECORD_BYTES_MAX

    def __post_init__(self) -> None:
        bounded = min(max(self.record_bytes, limits.RECORD_BYTES_MAX), limits.RECORD_BYTES_LARGEST)
        object.__setattr__(self, "record_bytes", bounded)

    @property
    def _extra_bytes(self) -> int:
        return self.record_bytes - limits.RECORD_BYTES_MAX

    @property
    def batch_bytes(self) -> int:
        """A record batch."""
        return limits.BATCH_BYTES_MAX + self._extra_bytes

    @property
    def frame_bytes(self) -> int:
        """A frame's length, and an entry of the log."""
        return limits.FRAME_BYTES_MAX + self._extra_bytes

    @property
    def segment_bytes_min(self) -> int:
        """The smallest segment of a log that holds the largest entry."""
        return limits.SEGMENT_BYTES_MIN + self._extra_bytes

    @property
    def group_commit_bytes(self) -> int:
        """Entries that are written to the log together."""
        return limits.GROUP_COMMIT_BYTES_MAX + self._extra_bytes

    @property
    def pending_append_bytes(self) -> int:
        """Appends that wait for the disk."""
        return limits.PENDING_APPEND_BYTES_MAX + self._extra_bytes

    @property
    def connection_in_flight_bytes(self) -> int:
        """Requests of one connection in progress; with more its socket is not read."""
        return limits.CONNECTION_IN_FLIGHT_BYTES_MAX + self._extra_bytes

    @property
    def server_in_flight_bytes(self) -> int:
        """Requests of all connections of a range server in progress."""
        return limits.SERVER_IN_FLIGHT_BYTES_MAX + 2 * self._extra_bytes

    @property
    def server_unread_bytes(self) -> int:
        """Answers of all connections that are produced, or wait to be read by their peers."""
        return limits.SERVER_UNREAD_BYTES_MAX + 2 * self._extra_bytes


DEFAULT: Final = RecordSizes()
LARGEST: Final = RecordSizes(limits.RECORD_BYTES_LARGEST)
"""The sizes that readers accept: a lower setting never hides records of a higher one."""
