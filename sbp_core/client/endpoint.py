"""Endpoints as text: "host:port"."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError

_ENDPOINT: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^\s:\[\]/@,?#%]+))"
    r":(?P<port>[0-9]{1,5})"
)
_UNSHOWN: Final = re.compile(r"[/?#%].*", re.DOTALL)
"""What follows an address in a URL: it may hold a password."""


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return (host, port) of "host:port"; an IPv6 address stands in brackets.

    A host name is in its ASCII form. Raises ConfigurationError for anything else.
    """
    if len(text) > limits.ADDRESS_LENGTH_MAX:
        raise ConfigurationError(
            f"an endpoint of {len(text)} characters is too long;"
            f" host:port has {limits.ADDRESS_LENGTH_MAX} at most"
        )
    found = _ENDPOINT.fullmatch(text)
    is_text = text.isascii() and text.isprintable()
    if found is None or not is_text or not 0 < int(found["port"]) < 65536:
        raise _wrong(text)
    if found["ipv6"] is not None and not _is_ipv6(found["ipv6"]):
        raise _wrong(text)
    return found["ipv6"] or found["host"], int(found["port"])


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _wrong(text: str) -> ConfigurationError:
    if "@" in text:  # may hold a password, so it is not shown
        return ConfigurationError(
            "the endpoint has an '@': leave out user and password, there is no option for them;"
            " write host:port"
        )
    shown = _UNSHOWN.sub("...", text)
    return ConfigurationError(
        f"endpoint {shown!a} is not host:port; write for example 127.0.0.1:12378,"
        " log.example.org:12378 or [::1]:12378"
    )
