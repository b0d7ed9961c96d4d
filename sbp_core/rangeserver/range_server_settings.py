"""What an operator may set for a range server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.client import parse_endpoint
from sbp_core.errors import ConfigurationError
from sbp_core.server.settings import ListenerSettings, check_integer

FSYNC_ALWAYS: Final = "always"
FSYNC_INTERVAL: Final = "interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeServerSettings(ListenerSettings):
    """Settings of one range server; the metadata of each field documents it in conf/server.toml.

    Raises ConfigurationError when a value cannot work.
    """

    port: int = field(
        default=10911, metadata=ListenerSettings.__dataclass_fields__["port"].metadata
    )
    placement_driver: str = field(
        metadata={
            "doc": "Where the placement driver listens.",
            "unit": "",
            "limit": "host:port",
        }
    )
    segment_bytes: int = field(
        default=limits.SEGMENT_BYTES,
        metadata={
            "doc": "Size at which the log starts a new segment file.",
            "unit": "bytes",
            "limit": f"{limits.SEGMENT_BYTES_MIN}..{limits.SEGMENT_BYTES_MAX}",
        },
    )
    fsync: str = field(
        default=FSYNC_ALWAYS,
        metadata={
            "doc": "When an append is acknowledged: always, once it is synced to disk; interval,"
            " once it is written, so that a power cut takes what was not synced yet.",
            "unit": "",
            "limit": f"{FSYNC_ALWAYS}, {FSYNC_INTERVAL}",
        },
    )
    fsync_interval_ms: int = field(
        default=limits.FSYNC_INTERVAL_MS,
        metadata={
            "doc": "How long an acknowledged append may stay unsynced where fsync is interval.",
            "unit": "milliseconds",
            "limit": f"1..{limits.FSYNC_INTERVAL_MS_MAX}",
        },
    )
    disk_free_floor_bytes: int = field(
        default=limits.DISK_FREE_FLOOR_BYTES,
        metadata={
            "doc": "Free disk space that is kept: with less, appends are refused, and reads go on.",
            "unit": "bytes",
            "limit": f"0..{limits.DISK_FREE_FLOOR_BYTES_MAX}",
        },
    )
    local_reads: bool = field(
        default=True,
        metadata={
            "doc": "Whether readers on this machine are told where records are in the log, so that"
            " those who may open its files, as processes of the same user may, read them without"
            " the server.",
            "unit": "",
            "limit": "true, false",
        },
    )
    heartbeat_interval_ms: int = field(
        default=limits.HEARTBEAT_INTERVAL_MS,
        metadata={
            "doc": "Pause between heartbeats to the placement driver.",
            "unit": "milliseconds",
            "limit": f"1..{limits.HEARTBEAT_TIMEOUT_MS // 3}",
        },
    )
    retention_check_interval_ms: int = field(
        default=limits.RETENTION_CHECK_INTERVAL_MS,
        metadata={
            "doc": "Pause between looks for records whose retention is over and for disk space to"
            " free.",
            "unit": "milliseconds",
            "limit": f"1..{limits.RETENTION_CHECK_INTERVAL_MS_MAX}",
        },
    )
    staged_timeout_ms: int = field(
        default=limits.STAGED_TIMEOUT_MS,
        metadata={
            "doc": "How long something stays staged for a transaction that is not decided: then it"
            " is given up, and dropped.",
            "unit": "milliseconds",
            "limit": f"1..{limits.STAGED_TIMEOUT_MS_MAX}",
        },
    )

    @property
    def sync_interval_ms(self) -> int:
        """How long an acknowledged append may stay unsynced; 0 for not at all."""
        return self.fsync_interval_ms if self.fsync == FSYNC_INTERVAL else 0

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        parse_endpoint(self.placement_driver)
        check_integer(
            "segment_bytes",
            self.segment_bytes,
            limits.SEGMENT_BYTES_MIN,
            limits.SEGMENT_BYTES_MAX,
        )
        if self.fsync not in {FSYNC_ALWAYS, FSYNC_INTERVAL}:
            raise ConfigurationError(
                f"fsync: expected {FSYNC_ALWAYS} or {FSYNC_INTERVAL}, got {self.fsync!r}"
            )
        if not isinstance(self.local_reads, bool):
            raise ConfigurationError(
                f"local_reads: expected true or false, got {self.local_reads!r}"
            )
        check_integer("fsync_interval_ms", self.fsync_interval_ms, 1, limits.FSYNC_INTERVAL_MS_MAX)
        check_integer(
            "disk_free_floor_bytes",
            self.disk_free_floor_bytes,
            0,
            limits.DISK_FREE_FLOOR_BYTES_MAX,
        )
        check_integer(
            "heartbeat_interval_ms",
            self.heartbeat_interval_ms,
            1,
            limits.HEARTBEAT_TIMEOUT_MS // 3,
        )
        check_integer(
            "retention_check_interval_ms",
            self.retention_check_interval_ms,
            1,
            limits.RETENTION_CHECK_INTERVAL_MS_MAX,
        )
        check_integer("staged_timeout_ms", self.staged_timeout_ms, 1, limits.STAGED_TIMEOUT_MS_MAX)
