"""Settings of the placement driver; the metadata of the fields is what conf/server.toml says."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sbp_core import limits
from sbp_core.pd.capacity import CapacityLimits
from sbp_core.server.settings import ListenerSettings, check_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDriverSettings(ListenerSettings):
    """How one placement driver runs. Raises ConfigurationError when a value cannot work."""

    port: int = field(
        default=12378, metadata=ListenerSettings.__dataclass_fields__["port"].metadata
    )
    heartbeat_timeout_ms: int = field(
        default=limits.HEARTBEAT_TIMEOUT_MS,
        metadata={
            "doc": "Silence of a range server after which it is given no new ranges;"
            " three of its heartbeats at least.",
            "unit": "milliseconds",
            "limit": f"{limits.HEARTBEAT_TIMEOUT_MS_MIN}..{limits.HEARTBEAT_TIMEOUT_MS_MAX}",
        },
    )
    batch_number_leap_max: int = field(
        default=limits.BATCH_NUMBER_LEAP_MAX,
        metadata={
            "doc": "How far the number of a producer's batch may lie above its last one. A larger"
            " number is refused: all numbers below it would then come too late. Raise it for"
            " writes whose txnVersion grows faster, such as a time in milliseconds.",
            "unit": "",
            "limit": f"1..{2**63 - 1}",
        },
    )
    streams_max: int = field(
        default=limits.STREAMS_MAX,
        metadata={
            "doc": "Streams that there may be; more are refused.",
            "unit": "streams",
            "limit": f"1..{limits.ROWS_MAX}",
        },
    )
    ranges_per_stream_max: int = field(
        default=limits.RANGES_PER_STREAM_MAX,
        metadata={
            "doc": "Ranges of one stream that are not trimmed away; more are refused.",
            "unit": "ranges",
            "limit": f"1..{limits.ROWS_MAX}",
        },
    )
    cursors_max: int = field(
        default=limits.CURSORS_MAX,
        metadata={
            "doc": "Cursors of all consumer groups together; more are refused.",
            "unit": "cursors",
            "limit": f"1..{limits.ROWS_MAX}",
        },
    )
    decisions_max: int = field(
        default=limits.DECISIONS_MAX,
        metadata={
            "doc": "Decided batches of transactions that are kept; more are refused.",
            "unit": "batches",
            "limit": f"1..{limits.ROWS_MAX}",
        },
    )
    aborted_txns_max: int = field(
        default=limits.ABORTED_TXNS_MAX,
        metadata={
            "doc": "Aborted transactions that are kept, for 30 days; more are refused.",
            "unit": "transactions",
            "limit": f"1..{limits.ROWS_MAX}",
        },
    )

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        check_integer(
            "heartbeat_timeout_ms",
            self.heartbeat_timeout_ms,
            limits.HEARTBEAT_TIMEOUT_MS_MIN,
            limits.HEARTBEAT_TIMEOUT_MS_MAX,
        )
        check_integer("batch_number_leap_max", self.batch_number_leap_max, 1, 2**63 - 1)
        for each in fields(CapacityLimits):
            check_integer(each.name, getattr(self, each.name), 1, limits.ROWS_MAX)

    @property
    def capacity_limits(self) -> CapacityLimits:
        """How much it takes note of."""
        return CapacityLimits(*(getattr(self, each.name) for each in fields(CapacityLimits)))
