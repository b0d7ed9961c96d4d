"""host:port, as servers advertise themselves (SPEC "HEARTBEAT", advertise_addr)."""

from __future__ import annotations

import ipaddress

from sbp_core.client.endpoint import parse_endpoint
from sbp_core.errors import ConfigurationError


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
