"""The settings of commands that serve HTTP: where they listen, which cluster they ask, for whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.settings.declaration import (
    check_settings,
    flag_setting,
    integer_setting,
    path_setting,
    text_setting,
)
from sbp_core.settings.listening import Exposure, is_address, join_address

if TYPE_CHECKING:
    from sbp_core.client.connecting import Connecting
    from sbp_core.tls import Contexts, PublicTls

BODY_BYTES_MAX: Final = 16 * limits.MIB
"""Bytes of the body of a request, decompressed; the default."""
IN_FLIGHT_BYTES_MAX: Final = 64 * limits.MIB
"""Bytes of the bodies of all requests that are not answered yet."""


def port_setting(default: int) -> Any:
    """Declare the port of a command that serves clients of its own."""
    about = "Port to listen on; 0 picks a free one."
    return integer_setting(about, 0, 65_535, default=default, option="--port", metavar="PORT")


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """Where to listen, and how to connect to the cluster.

    `connecting` has the credentials of this process. Requests without a token use them, so they are
    for addresses that only this machine reaches. Where other machines connect to, requests need a
    token, unless the process is `insecure`.

    Raises ConfigurationError for what cannot work, or would let anybody in.
    """

    keeps_credentials: ClassVar[bool] = False
    """Whether no request ever uses the credentials of this process, where requests need a token."""

    tls_options: ClassVar[str] = "--https-cert and --https-key"
    """The options for the certificate that clients see."""

    endpoint: str
    connecting: Connecting
    host: str = text_setting(
        "Interface to listen on.",
        "a host name or an IP address",
        default="127.0.0.1",
        option="--host",
        metavar="HOST",
    )
    port: int
    listener_cert: Path | None = path_setting(
        "Speak HTTPS only, with the certificate in this file, and its chain.",
        "a file in PEM",
        option="--https-cert",
    )
    listener_key: Path | None = path_setting(
        "Key of that certificate.", "a file in PEM", option="--https-key"
    )
    insecure: bool = flag_setting(
        "Listen where other machines connect to, though requests need no token.",
        option="--insecure",
    )

    def __post_init__(self) -> None:
        from sbp_core.client.connecting import parse_endpoint, parse_endpoints

        check_settings(self)
        if (self.listener_cert is None) != (self.listener_key is None):
            raise ConfigurationError(f"give {self.tls_options}, both or neither")
        parse_endpoints(self.endpoint)
        parse_endpoint(join_address(self.host, self.port or 1))
        if self.is_local:
            return
        if self.has_own_credentials and not (self.keeps_credentials and self.needs_token):
            raise ConfigurationError(
                f"--host {self.host} can be reached from other machines, and requests without a"
                " token would act with the token or certificate of this process: leave out"
                " --token-file, --tls-cert and $SBP_TOKEN, so that each request needs its own"
                " token; or listen on 127.0.0.1"
            )
        if not self.insecure and (self.tls is None or self.connecting.tls is None):
            raise ConfigurationError(
                f"--host {self.host} can be reached from other machines, and they could do"
                " everything, or read the tokens of others on the way: listen on 127.0.0.1; or"
                f" speak TLS ({self.tls_options}) and connect to a cluster that asks for"
                " identities (--tls-ca), and each request needs a token; or, if all machines that"
                " reach it are trusted, allow it with --insecure"
            )

    @property
    def tls(self) -> PublicTls | None:
        """The files of HTTPS; None without them."""
        from sbp_core.tls import PublicTls

        if self.listener_cert is None or self.listener_key is None:
            return None
        return PublicTls(self.listener_cert, self.listener_key)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address; a name other than localhost may not be."""
        from sbp_core.sockets import is_loopback

        return self.host == "localhost" or (is_address(self.host) and is_loopback(self.host))

    @property
    def has_own_credentials(self) -> bool:
        """Whether this process has an identity of its own."""
        tls = self.connecting.tls
        return self.connecting.credentials is not None or (
            tls is not None and tls.cert_file is not None
        )

    @property
    def needs_token(self) -> bool:
        """Whether each request needs a token."""
        return not self.is_local and not self.insecure

    @property
    def exposure(self) -> Exposure:
        """The clients that may connect from other machines."""
        if self.is_local:
            return Exposure.NOBODY
        return Exposure.ANYBODY if self.insecure else Exposure.IDENTIFIED

    def tls_contexts(self) -> Contexts | None:
        """Read the files of HTTPS. Raises ConfigurationError if they cannot be used."""
        from sbp_core.tls import ready

        return None if self.tls is None else ready(self.tls)


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings(WebSettings):
    """The settings of `sbp console`."""

    port: int = port_setting(12380)


@dataclass(frozen=True, kw_only=True)
class HttpSettings(WebSettings):
    """The settings of `sbp http`."""

    port: int = port_setting(12381)
    body_bytes_max: int = integer_setting(
        f"Largest body of a request, decompressed, up to {IN_FLIGHT_BYTES_MAX}.",
        1,
        IN_FLIGHT_BYTES_MAX,
        default=BODY_BYTES_MAX,
        option="--body-bytes-max",
        metavar="BYTES",
    )
