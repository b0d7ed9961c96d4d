"""The settings that both servers share, and the addresses in them.

The metadata of the fields are what conf/server.toml says. An address is host:port, as servers
advertise themselves (SPEC "HEARTBEAT", advertise_addr).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from sbp_core import limits
from sbp_core.client.types import parse_endpoint
from sbp_core.errors import ConfigurationError
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


def is_wildcard(host: str) -> bool:
    """Whether `host` means every interface, which nobody can connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def join_address(host: str, port: int) -> str:
    """Return host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_listening(host: object, port: object, advertise_host: object) -> None:
    """Raise ConfigurationError unless a server can listen and be reached with these settings.

    Port 0 lets the system pick one. A host that means every interface needs `advertise_host`.
    """
    check_integer("port", port, 0, 65_535)
    _check_host("host", host)
    if advertise_host is not None:
        _check_host("advertise_host", advertise_host)
    public_host = host if advertise_host is None else advertise_host
    if is_wildcard(str(public_host)):
        raise ConfigurationError(
            f"advertise_host: nobody can connect to {public_host}, which is every"
            " interface; set advertise_host to the name or address of this machine"
        )


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigurationError unless `value` is an integer from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(f"{name}: expected an integer in {low}..{high}, got {value!r}")


def _check_host(name: str, host: object) -> None:
    if not isinstance(host, str):
        raise ConfigurationError(f"{name}: expected a string, got {host!r}")
    try:
        parse_endpoint(join_address(host, 1))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{name}: {host!a} is not a host; expected a host name or an IP address without a port"
        ) from error
