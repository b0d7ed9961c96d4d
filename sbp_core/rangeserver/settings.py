"""What an operator may set for a range server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sbp_core import limits
from sbp_core.client import parse_endpoint
from sbp_core.server.addresses import check_integer, check_listening


@dataclass(frozen=True, slots=True)
class RangeServerSettings:
    """Settings of one range server; the metadata of each field documents it in conf/server.toml.

    Raises ConfigurationError when a value cannot work.
    """

    data_dir: Path = field(
        metadata={
            "doc": "Directory of the log and of the server's identity; made when missing.",
            "unit": "",
            "limit": "a directory that can be written, used by one process at a time",
        }
    )
    placement_driver: str = field(
        metadata={
            "doc": "Where the placement driver listens.",
            "unit": "",
            "limit": "host:port",
        }
    )
    host: str = field(
        default="127.0.0.1",
        metadata={
            "doc": "Interface to listen on.",
            "unit": "",
            "limit": "a host name or an IP address; 0.0.0.0 and :: need advertise_host",
        },
    )
    port: int = field(
        default=10911,
        metadata={
            "doc": "TCP port to listen on; 0 lets the system pick one.",
            "unit": "",
            "limit": "0..65535",
        },
    )
    advertise_host: str | None = field(
        default=None,
        metadata={
            "doc": "Host that clients are told to connect to; the value of host when not set.",
            "unit": "",
            "limit": "a host name or an IP address of this machine",
        },
    )
    segment_bytes: int = field(
        default=limits.SEGMENT_BYTES,
        metadata={
            "doc": "Size at which the log starts a new segment file.",
            "unit": "bytes",
            "limit": f"{limits.SEGMENT_BYTES_MIN}..{limits.SEGMENT_BYTES_MAX}",
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

    def __post_init__(self) -> None:
        parse_endpoint(self.placement_driver)
        check_listening(self.host, self.port, self.advertise_host)
        check_integer(
            "segment_bytes",
            self.segment_bytes,
            limits.SEGMENT_BYTES_MIN,
            limits.SEGMENT_BYTES_MAX,
        )
        check_integer(
            "heartbeat_interval_ms",
            self.heartbeat_interval_ms,
            1,
            limits.HEARTBEAT_TIMEOUT_MS // 3,
        )

    @property
    def public_host(self) -> str:
        """The host that clients are told."""
        return self.host if self.advertise_host is None else self.advertise_host
