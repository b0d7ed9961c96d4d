"""Settings of servers: how one is declared and checked, and those that both servers share.

A setting is one field: its declaration has the default, the limit that is checked, and the text of
conf/server.toml. `sbp_core.cluster` offers the fields as settings of `sbp serve`.

An address is host:port, as servers advertise it (SPEC "HEARTBEAT", advertise_addr).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from sbp_core import limits
from sbp_core.client.types import parse_endpoint
from sbp_core.errors import ConfigurationError
from sbp_core.sockets import is_loopback
from sbp_core.wire.dialect import Dialect, parse_dialect


def setting(doc: str, limit: str, *, default: Any = MISSING) -> Any:
    """Declare a setting whose class checks it; without a default it has to be given."""
    return field(default=default, metadata={"doc": doc, "unit": "", "limit": limit})


def integer_setting(
    doc: str, low: int, high: int, *, default: int | Any = MISSING, unit: str = ""
) -> Any:
    """Declare a setting that is an integer from `low` to `high`."""
    return field(
        default=default,
        metadata={"doc": doc, "unit": unit, "limit": f"{low}..{high}", "bounds": (low, high)},
    )


def choice_setting(doc: str, choices: tuple[str | bool, ...], *, default: str | bool) -> Any:
    """Declare a setting that has one of some values."""
    words = ", ".join(str(each).lower() if isinstance(each, bool) else each for each in choices)
    metadata = {"doc": doc, "unit": "", "limit": words, "choices": choices}
    return field(default=default, metadata=metadata)


def port_setting(default: int | Any = MISSING) -> Any:
    """Declare the port that a server listens on."""
    doc = "TCP port to listen on; 0 lets the system pick one."
    return integer_setting(doc, 0, 65_535, default=default)


def check_settings(settings: Any) -> None:
    """Raise ConfigurationError unless each field has a value that its declaration allows."""
    for each in fields(settings):
        value, limit = getattr(settings, each.name), each.metadata.get("limit")
        if "bounds" in each.metadata:
            low, high = each.metadata["bounds"]
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ConfigurationError(
                    f"{each.name}: expected an integer in {limit}, got {value!r}"
                )
        choices = each.metadata.get("choices")
        if choices and (type(value), value) not in [(type(one), one) for one in choices]:
            raise ConfigurationError(f"{each.name}: expected one of {limit}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Where a server keeps its data and where it listens.

    Raises ConfigurationError when a value cannot work.
    """

    data_dir: Path = setting(  # noqa: RUF009 - a field of the dataclass
        "Directory of the data; created when missing, used by one process at a time.",
        "a directory that can be written",
    )
    host: str = setting(
        "Interface to listen on.",
        "a host name or an IP address; 0.0.0.0 and :: need advertise_host",
        default="127.0.0.1",
    )
    insecure: bool = choice_setting(
        "Whether host may be reached from other machines. Clients are not authenticated: all that"
        " reach a server can read, write and delete everything.",
        (True, False),
        default=False,
    )
    port: int = port_setting()
    advertise_host: str | None = setting(
        "Host that clients connect to; the value of host when not set.",
        "a host name or an IP address of this machine",
        default=None,
    )
    advertise_port: int = integer_setting(
        "Port that clients connect to, if it is forwarded to this one; 0 is the port to listen on.",
        0,
        65_535,
        default=0,
    )
    connections_per_address_max: int = integer_setting(
        "Connections that one server accepts from one address (for IPv6, from one /64 network);"
        " those from the machine itself are not counted.",
        1,
        limits.CONNECTIONS_MAX,
        default=limits.CONNECTIONS_PER_ADDRESS_MAX,
        unit="connections",
    )
    dialect: str = setting(
        "Dialect of the protocol that the servers speak; clients detect it.",
        ", ".join(Dialect),
        default=Dialect.SPECIFICATION.value,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        parse_dialect(self.dialect)
        if not isinstance(self.data_dir, Path):
            raise ConfigurationError(f"data_dir: expected a path, got {self.data_dir!r}")
        _check_host("host", self.host)
        if self.advertise_host is not None:
            _check_host("advertise_host", self.advertise_host)
        public_host = self.host if self.advertise_host is None else self.advertise_host
        if is_wildcard(public_host):
            raise ConfigurationError(
                f"advertise_host: clients cannot connect to {public_host}, which means every"
                " interface; set advertise_host to the name or address of this machine"
            )
        if is_address(self.host):  # what a name means is known when it listens
            check_reach(self.host, [self.host], insecure=self.insecure)

    def public_endpoint(self, port: int) -> str:
        """Return the "host:port" that clients connect to, for a server that listens on `port`."""
        host = self.host if self.advertise_host is None else self.advertise_host
        return join_address(host, self.advertise_port or port)


def check_reach(host: str, addresses: Iterable[str], *, insecure: bool) -> list[str]:
    """Return the addresses of `host` that other machines reach.

    Raises ConfigurationError if there are any, unless that is meant to be so: `insecure`.
    """
    exposed = sorted({each for each in addresses if not is_loopback(each)})
    if exposed and not insecure:
        shown = "" if exposed == [host] else f" ({', '.join(exposed)})"
        raise ConfigurationError(
            f"host: {host}{shown} can be reached from other machines, and clients are not"
            " authenticated: each could read, write and delete everything; set host to a loopback"
            " address such as 127.0.0.1, or, if all machines that reach it are trusted, allow it"
            " with --insecure (insecure = true in the file)"
        )
    return exposed


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_wildcard(host: str) -> bool:
    """Whether `host` means every interface, which is no address to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def join_address(host: str, port: int) -> str:
    """Return host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_host(name: str, host: object) -> None:
    if not isinstance(host, str):
        raise ConfigurationError(f"{name}: expected a string, got {host!r}")
    try:
        parse_endpoint(join_address(host, 1))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{name}: {host!a} is not a host; expected a host name or an IP address without a port"
        ) from error
