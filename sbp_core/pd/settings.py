"""Settings of the placement driver; the metadata of the fields is what conf/server.toml says."""

from __future__ import annotations

from dataclasses import dataclass, field

from sbp_core import limits
from sbp_core.server.addresses import check_integer
from sbp_core.server.settings import ListenerSettings


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

    def __post_init__(self) -> None:
        ListenerSettings.__post_init__(self)
        check_integer(
            "heartbeat_timeout_ms",
            self.heartbeat_timeout_ms,
            limits.HEARTBEAT_TIMEOUT_MS_MIN,
            limits.HEARTBEAT_TIMEOUT_MS_MAX,
        )
        check_integer("batch_number_leap_max", self.batch_number_leap_max, 1, 2**63 - 1)
