"""Settings of a range server, one declaration each.

The parser, docs/reference/configuration.md and conf/server.toml follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.client import parse_endpoints
from sbp_core.errors import ConfigurationError
from sbp_core.record_sizes import RecordSizes
from sbp_core.server.settings import (
    ListenerSettings,
    choice_setting,
    integer_setting,
    port_setting,
    setting,
)

FSYNC_ALWAYS: Final = "always"
FSYNC_INTERVAL: Final = "interval"
_SCRUB_BYTES_PER_S: Final = 4 * limits.MIB
_SCRUB_BYTES_PER_S_MAX: Final = 1024 * limits.MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeServerSettings(ListenerSettings):
    """How one range server runs. Raises ConfigurationError when a value cannot work."""

    port: int = port_setting(10911)
    placement_driver: str = setting(
        "Placement drivers of the cluster, separated by commas. The server registers with the one"
        " that leads, and sends heartbeats to all.",
        f"host:port, 1..{limits.PLACEMENT_DRIVERS_MAX} of them",
    )
    rack: str | None = setting(
        "Name of what fails together with this server, such as its rack or zone. The replicas of a"
        " range are placed on servers of different racks while there are some.",
        f"1..{limits.RACK_LENGTH_MAX} characters",
        default=None,
    )
    segment_bytes: int = integer_setting(
        "Size at which the log starts a new segment file.",
        limits.SEGMENT_BYTES_MIN,
        limits.SEGMENT_BYTES_MAX,
        default=limits.SEGMENT_BYTES,
        unit="bytes",
    )
    record_bytes_max: int = integer_setting(
        "Size of the largest record that is accepted. A range server with many clients uses up to"
        " 200 MiB and four times this size of memory. Older clients neither write nor read records"
        " above the default, and an older release does not open a log that has them. segment_bytes"
        " must be larger by at least 9 MiB.",
        limits.RECORD_BYTES_MAX,
        limits.RECORD_BYTES_LARGEST,
        default=limits.RECORD_BYTES_MAX,
        unit="bytes",
    )
    fsync: str = choice_setting(
        "When an append is acknowledged: always, when it is synced to disk; interval, when it is"
        " written, so that a power failure loses what was not synced yet. Batches of transactions"
        " are always synced.",
        (FSYNC_ALWAYS, FSYNC_INTERVAL),
        default=FSYNC_ALWAYS,
    )
    fsync_interval_ms: int = integer_setting(
        "How long an acknowledged append may stay unsynced when fsync is interval.",
        1,
        limits.FSYNC_INTERVAL_MS_MAX,
        default=limits.FSYNC_INTERVAL_MS,
        unit="milliseconds",
    )
    disk_free_floor_bytes: int = integer_setting(
        "Free disk space to keep: below it appends are refused, and reads continue.",
        0,
        limits.DISK_FREE_FLOOR_BYTES_MAX,
        default=limits.DISK_FREE_FLOOR_BYTES,
        unit="bytes",
    )
    heartbeat_interval_ms: int = integer_setting(
        "Pause between heartbeats to the placement driver.",
        1,
        limits.HEARTBEAT_TIMEOUT_MS // 3,
        default=limits.HEARTBEAT_INTERVAL_MS,
        unit="milliseconds",
    )
    retention_check_interval_ms: int = integer_setting(
        "Pause between checks for records whose retention is over and for disk space to free.",
        1,
        limits.RETENTION_CHECK_INTERVAL_MS_MAX,
        default=limits.RETENTION_CHECK_INTERVAL_MS,
        unit="milliseconds",
    )
    scrub_bytes_per_s: int = integer_setting(
        "How much of the log is read in a second to find damage, which is then mended from another"
        " replica. All of it is read at most once a day. 0 turns it off; damage that readers find"
        " is mended nevertheless.",
        0,
        _SCRUB_BYTES_PER_S_MAX,
        default=_SCRUB_BYTES_PER_S,
        unit="bytes",
    )
    staged_timeout_ms: int = integer_setting(
        "How long batches stay staged for a transaction without a decision; then it is aborted, and"
        " they are dropped.",
        1,
        limits.STAGED_TIMEOUT_MS_MAX,
        default=limits.STAGED_TIMEOUT_MS,
        unit="milliseconds",
    )

    @property
    def sizes(self) -> RecordSizes:
        """The limits that follow from `record_bytes_max`."""
        return RecordSizes(self.record_bytes_max)

    @property
    def sync_interval_ms(self) -> int:
        """How long an acknowledged append may stay unsynced; 0: it is synced before."""
        return self.fsync_interval_ms if self.fsync == FSYNC_INTERVAL else 0

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        parse_endpoints(self.placement_driver)
        if self.rack is not None and not 1 <= len(self.rack) <= limits.RACK_LENGTH_MAX:
            raise ConfigurationError(
                f"rack: expected 1..{limits.RACK_LENGTH_MAX} characters, got {len(self.rack)}"
            )
        if self.segment_bytes < self.sizes.segment_bytes_min:
            raise ConfigurationError(
                f"segment_bytes: {self.segment_bytes} is too small for a record_bytes_max of"
                f" {self.record_bytes_max}, since a segment must hold the largest record; set it to"
                f" {self.sizes.segment_bytes_min} or more, or lower record_bytes_max"
            )
