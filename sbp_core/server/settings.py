"""The settings that both servers share; their metadata is what conf/server.toml says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.server.addresses import check_integer, check_listening, join_address
from sbp_core.wire.dialect import Dialect, parse_dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Where a server keeps its data and where it listens.

    Raises ConfigurationError when a value cannot work.
    """

    data_dir: Path = field(
        metadata={
            "doc": "Directory of the data; made when missing, used by one process at a time.",
            "unit": "",
            "limit": "a directory that can be written",
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
    advertise_port: int = field(
        default=0,
        metadata={
            "doc": "Port that clients are told to connect to, where it is forwarded to this one;"
            " 0 is the port to listen on.",
            "unit": "",
            "limit": "0..65535",
        },
    )
    connections_per_address_max: int = field(
        default=limits.CONNECTIONS_PER_ADDRESS_MAX,
        metadata={
            "doc": "Connections that one server takes from one address (of IPv6, from one /64"
            " network); those from the machine itself are not counted.",
            "unit": "connections",
            "limit": f"1..{limits.CONNECTIONS_MAX}",
        },
    )
    dialect: str = field(
        default=Dialect.SPECIFICATION.value,
        metadata={
            "doc": "What the servers speak; clients recognise it by themselves.",
            "unit": "",
            "limit": ", ".join(Dialect),
        },
    )

    def __post_init__(self) -> None:
        parse_dialect(self.dialect)
        if not isinstance(self.data_dir, Path):
            raise ConfigurationError(f"data_dir: expected a path, got {self.data_dir!r}")
        check_listening(self.host, self.port, self.advertise_host)
        check_integer("advertise_port", self.advertise_port, 0, 65_535)
        check_integer(
            "connections_per_address_max",
            self.connections_per_address_max,
            1,
            limits.CONNECTIONS_MAX,
        )

    def public_endpoint(self, port: int) -> str:
        """Return the "host:port" that clients are told by a server that listens on `port`."""
        host = self.host if self.advertise_host is None else self.advertise_host
        return join_address(host, self.advertise_port or port)
