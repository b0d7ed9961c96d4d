"""Settings of a process that serves HTTP: where it listens, which cluster it asks, for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp_core.client.connecting import Connecting, parse_endpoint, parse_endpoints
from sbp_core.errors import ConfigurationError
from sbp_core.settings.listening import Exposure, is_address, join_address
from sbp_core.sockets import is_loopback
from sbp_core.tls import Contexts, PublicTls, ready
from sbp_core.web.http_listener import HttpLimits

LIMITS: Final = HttpLimits(
    connections_max=1024,
    head_bytes_max=32 * 1024,
    arrival_seconds=20.0,
    body_seconds=120.0,
    answer_seconds=None,  # tails have no end; the server of an answer has deadlines of its own
    stall_seconds=60.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Where to listen, and how to connect to the cluster.

    `connecting` has the credentials of this process. Requests without a token use them, so they are
    for addresses that only this machine reaches. Where other machines connect to, requests need a
    token, unless it `is_insecure`.

    Raises ConfigurationError for what cannot work, or would let anybody in.
    """

    endpoint: str
    connecting: Connecting
    port: int
    host: str = "127.0.0.1"
    tls: PublicTls | None = None
    is_insecure: bool = False

    def __post_init__(self) -> None:
        parse_endpoints(self.endpoint)
        parse_endpoint(join_address(self.host, self.port or 1))
        if self.is_local:
            return
        if self.has_own_credentials:
            raise ConfigurationError(
                f"--host {self.host} can be reached from other machines, and requests without a"
                " token would act with the token or certificate of this process: leave out"
                " --token-file, --tls-cert and $SBP_TOKEN, so that each request needs its own"
                " token; or listen on 127.0.0.1"
            )
        if not self.is_insecure and (self.tls is None or self.connecting.tls is None):
            raise ConfigurationError(
                f"--host {self.host} can be reached from other machines, and they could do"
                " everything, or read the tokens of others on the way: listen on 127.0.0.1; or"
                " speak TLS (--https-cert, --https-key) and connect to a cluster that asks for"
                " identities (--tls-ca), and each request needs a token; or, if all machines that"
                " reach it are trusted, allow it with --insecure"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address; a name other than localhost may not be."""
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
        return not self.is_local and not self.is_insecure

    @property
    def exposure(self) -> Exposure:
        """The clients that may connect from other machines."""
        if self.is_local:
            return Exposure.NOBODY
        return Exposure.ANYBODY if self.is_insecure else Exposure.IDENTIFIED

    def tls_contexts(self) -> Contexts | None:
        """Read the files of HTTPS. Raises ConfigurationError if they cannot be used."""
        return None if self.tls is None else ready(self.tls)
