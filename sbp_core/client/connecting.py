"""How a client connects: endpoints, and the arguments of its connections."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sbp_core import limits
from sbp_core.access.credentials import BearerToken, Credentials
from sbp_core.errors import ConfigurationError
from sbp_core.session.negotiation import NO_FEATURES, RequestedFeatures
from sbp_core.tls import Tls

_ENDPOINT: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^\s:\[\]/@,?#%]+))"
    r":(?P<port>[0-9]{1,5})"
)
_UNSHOWN: Final = re.compile(r"[/?#%].*", re.DOTALL)
"""The rest of a URL after the address: it may hold a password."""


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return (host, port) of "host:port", where an IPv6 address is in brackets.

    A host name has to be in its ASCII form. Raises ConfigurationError for another text.
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
    try:
        ipaddress.IPv6Address(found["ipv6"] or "::")
    except ValueError:
        raise _wrong(text) from None
    return found["ipv6"] or found["host"], int(found["port"])


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Return the endpoints in "host:port,host:port", each once.

    Raises ConfigurationError for an endpoint that `parse_endpoint` refuses, and for too many.
    """
    endpoints = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    for each in endpoints:
        parse_endpoint(each)
    if len(endpoints) > limits.PLACEMENT_DRIVERS_MAX:
        raise ConfigurationError(
            f"{len(endpoints)} endpoints are too many; name"
            f" {limits.PLACEMENT_DRIVERS_MAX} placement drivers at most"
        )
    return endpoints


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


@dataclass(frozen=True, slots=True)
class Connecting:
    """How connections are made: the timeout, the features to ask for, and a callback for timings.

    `tls` makes TLS required; without it servers must not speak TLS. `credentials` name the token
    that identifies the client; a token is sent over TLS only. `on_timing` gets the timing of each
    answered call, on the thread that received the answer, and must return at once.
    """

    timeout_ms: int = limits.CONNECT_TIMEOUT_MS
    features: RequestedFeatures = NO_FEATURES
    on_timing: OnTiming | None = None
    tls: Tls | None = None
    credentials: Credentials | BearerToken | None = None

    def __post_init__(self) -> None:
        if self.credentials is not None and self.tls is None:
            raise ConfigurationError(
                f"a token ({self.credentials}) is sent over TLS only; name the authorities of the"
                " servers, too (ca_file of Tls, --tls-ca, or the option tlsCaFile)"
            )

    @property
    def shown_identity(self) -> str:
        """The file or variable that has the identity, for the log. The token is never shown."""
        if self.credentials is not None:
            return str(self.credentials)
        if self.tls is not None and self.tls.cert_file is not None:
            return f"certificate {self.tls.cert_file}"
        return "none"

    @property
    def all_features(self) -> RequestedFeatures:
        """The requested features, with the durations that `on_timing` needs."""
        return replace(self.features, handler_duration=self.on_timing is not None)


@dataclass(frozen=True, slots=True)
class CallTiming:
    """The timing of one answered call, in ms.

    `round_trip_ms` is the time from the request to the last frame of the answer. `server_ms` is the
    time that the server reports, long polls included; None if it reports none.
    """

    endpoint: str
    operation: str
    round_trip_ms: float
    server_ms: float | None


OnTiming = Callable[[CallTiming], None]
