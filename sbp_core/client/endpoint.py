"""Endpoints as text: "host:port"."""

from __future__ import annotations

import re
from typing import Final

from sbp_core.errors import ConfigurationError

_ENDPOINT: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%A-Za-z_-]+)\]|(?P<host>[^\s:\[\]/@,]+)):(?P<port>[0-9]{1,5})"
)


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return (host, port) of "host:port"; an IPv6 address stands in brackets.

    Raises ConfigurationError for anything else.
    """
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ConfigurationError(
            f"endpoint {text!r} is not host:port; write for example 127.0.0.1:12378,"
            " log.example.org:12378 or [::1]:12378"
        )
    return found["ipv6"] or found["host"], int(found["port"])
