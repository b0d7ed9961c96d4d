"""Where a server listens, to whom, and with which files of TLS and identities.

An address is host:port, as servers advertise it (SPEC "HEARTBEAT", advertise_addr).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from sbp_core import limits
from sbp_core.access.identity import parse_subject
from sbp_core.errors import ConfigurationError
from sbp_core.settings.declaration import (
    check_settings,
    choice_setting,
    flag_setting,
    integer_setting,
    list_setting,
    path_setting,
    text_setting,
)

if TYPE_CHECKING:
    from sbp_core.tls import Contexts, ServerTls, Tls


class Exposure(Enum):
    """The clients that may connect from other machines."""

    NOBODY = "nobody"
    CERTIFIED = "clients with a certificate"
    IDENTIFIED = "clients with an identity"
    ANYBODY = "anybody"


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """The settings that all servers of `sbp serve` have together."""

    host: str = text_setting(
        "Interface to listen on.",
        "a host name or an IP address; 0.0.0.0 and :: need advertise_host",
        default="127.0.0.1",
        option="--host",
        metavar="HOST",
    )
    insecure: bool = flag_setting(
        "Whether host may be reached from other machines, though clients show no certificates: all"
        " that reach a server can read, write and delete everything.",
        option="--insecure",
    )
    advertise_host: str | None = text_setting(
        "Host that clients connect to; the value of host when not set.",
        "a host name or an IP address of this machine",
        default=None,
        option="--advertise-host",
        metavar="HOST",
    )
    connections_per_address_max: int = integer_setting(
        "Connections that one server accepts from one address (for IPv6, from one /64 network);"
        " those from the machine itself are not counted.",
        1,
        limits.CONNECTIONS_MAX,
        default=limits.CONNECTIONS_PER_ADDRESS_MAX,
        unit="connections",
    )
    tls_cert_file: Path | None = path_setting(
        "Certificate of the server, with its chain: it names the host that the server advertises."
        " With it the server speaks TLS only. The files are read again when they change.",
        "a file in PEM",
        section="tls",
        key="cert_file",
        option="--tls-cert",
    )
    tls_key_file: Path | None = path_setting(
        "Key of the certificate, not encrypted.",
        "a file in PEM",
        section="tls",
        key="key_file",
        option="--tls-key",
    )
    tls_ca_file: Path | None = path_setting(
        "Authorities of the certificates that the servers of the cluster show each other.",
        "a file in PEM",
        section="tls",
        key="ca_file",
        option="--tls-ca",
    )
    tls_client_ca_file: Path | None = path_setting(
        "Authorities of the certificates that clients have to show; when not set, clients need"
        " none. Servers need one of an authority in ca_file.",
        "a file in PEM",
        section="tls",
        key="client_ca_file",
        option="--tls-client-ca",
    )
    tls_client_certificates: str = choice_setting(
        "Whether clients have to show a certificate, if client_ca_file is set; optional is for"
        " clients with a token, and needs [auth].",
        ("required", "optional"),
        default="required",
        section="tls",
        key="client_certificates",
        option="--tls-client-certificates",
        metavar="WHEN",
    )
    auth_admins: tuple[str, ...] = list_setting(
        "Subjects of the administrators; with it every request needs an identity: a certificate of"
        " an authority in [tls], or a token.",
        "subjects of certificates, such as CN=alice,O=Acme, or of tokens",
        section="auth",
        key="admins",
        option="--auth-admin",
        metavar="SUBJECT",
    )
    auth_servers: tuple[str, ...] = list_setting(
        "Subjects of the certificates of the cluster's servers; when empty, that of the server's"
        " own certificate as it is at the start.",
        "subjects of certificates",
        section="auth",
        key="servers",
        option="--auth-server",
        metavar="SUBJECT",
    )
    auth_monitors: tuple[str, ...] = list_setting(
        "Subjects that may read the metrics, and why a server is not ready, at its admin_port, and"
        " nothing else; administrators may too.",
        "subjects of certificates, or of tokens",
        section="auth",
        key="monitors",
        option="--auth-monitor",
        metavar="SUBJECT",
    )
    auth_jwks_file: Path | None = path_setting(
        "Public keys of the issuer of tokens; the file is read again when it changes. Without it"
        " and jwks_url no tokens are accepted.",
        "a JSON Web Key Set",
        section="auth",
        key="jwks_file",
        option="--auth-jwks-file",
    )
    auth_jwks_url: str | None = text_setting(
        "URL of these keys instead: they are fetched at the start, every ten minutes while tokens"
        " come, and for an unknown key once a minute at most. While they cannot be fetched they are"
        " asked for again after 1 s, 2 s, 4 s, and so on up to a minute.",
        "a URL of https",
        default=None,
        section="auth",
        key="jwks_url",
        option="--auth-jwks-url",
        metavar="URL",
    )
    auth_jwks_ca_file: Path | None = path_setting(
        "Authorities of the certificate at jwks_url; the authorities of the system when not set.",
        "a file in PEM",
        section="auth",
        key="jwks_ca_file",
        option="--auth-jwks-ca-file",
    )
    auth_issuer: str | None = text_setting(
        "Issuer that tokens have to name (iss).",
        "a text; needed for tokens",
        default=None,
        section="auth",
        key="issuer",
        option="--auth-issuer",
        metavar="TEXT",
    )
    auth_audience: str | None = text_setting(
        "Audience that tokens have to name (aud).",
        "a text, such as the name of the cluster; needed for tokens",
        default=None,
        section="auth",
        key="audience",
        option="--auth-audience",
        metavar="TEXT",
    )
    quotas_file: Path | None = path_setting(
        "File with the section [quotas], which is read again at SIGHUP; the file of --config when"
        " not set.",
        "a configuration file",
        option="--quotas-file",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_tls(self)
        check_auth(self)


@dataclass(frozen=True, kw_only=True)
class ListenerSettings(SharedSettings):
    """Where one server keeps its data and where it listens.

    Raises ConfigurationError when a value cannot work.
    """

    data_dir: Path = path_setting(
        "Folder of the data; made when missing, used by one process at a time. A relative path"
        " starts at the working directory.",
        "a folder that can be written",
        default=MISSING,
        option="--data-dir",
        metavar="DIR",
    )
    port: int
    advertise_port: int = integer_setting(
        "Port that clients connect to, if it is forwarded to this one; 0 is the port to listen on.",
        0,
        65_535,
        default=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
            check_reach(self.host, [self.host], self.exposure)

    @property
    def exposure(self) -> Exposure:
        """The clients that may connect from other machines."""
        if self.auth_admins:
            return Exposure.IDENTIFIED
        if self.tls_client_ca_file is not None:
            return Exposure.CERTIFIED
        return Exposure.ANYBODY if self.insecure else Exposure.NOBODY

    @property
    def tls(self) -> ServerTls | None:
        """The files of TLS; None for a server without it."""
        from sbp_core.tls import ServerTls

        cert_file, key_file, ca_file = self.tls_cert_file, self.tls_key_file, self.tls_ca_file
        if cert_file is None or key_file is None or ca_file is None:
            return None
        is_client_optional = self.tls_client_certificates == "optional"
        return ServerTls(cert_file, key_file, ca_file, self.tls_client_ca_file, is_client_optional)

    @property
    def client_tls(self) -> Tls | None:
        """The files with which it connects to other servers of the cluster."""
        return None if self.tls is None else self.tls.as_client

    def tls_contexts(self) -> Contexts | None:
        """Read the files. Raises ConfigurationError if they cannot be used."""
        from sbp_core.tls import ready

        return None if self.tls is None else ready(self.tls)

    def public_endpoint(self, port: int) -> str:
        """Return the "host:port" that clients connect to, for a server that listens on `port`."""
        host = self.host if self.advertise_host is None else self.advertise_host
        return join_address(host, self.advertise_port or port)


def check_reach(host: str, addresses: Iterable[str], exposure: Exposure) -> list[str]:
    """Return the addresses of `host` that other machines reach.

    Raises ConfigurationError if there are any, and nobody may connect from other machines.
    """
    from sbp_core.sockets import is_loopback

    exposed = sorted({each for each in addresses if not is_loopback(each)})
    if exposed and exposure is Exposure.NOBODY:
        shown = "" if exposed == [host] else f" ({', '.join(exposed)})"
        raise ConfigurationError(
            f"host: {host}{shown} can be reached from other machines, and clients are not"
            " authenticated: each could read, write and delete everything; set host to a loopback"
            " address such as 127.0.0.1; or ask for identities ([auth], --auth-admin); or let"
            " clients show certificates (client_ca_file in [tls], --tls-client-ca); or, if all"
            " machines that reach it are trusted, allow it with --insecure (insecure = true in the"
            " file)"
        )
    return exposed


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_tls(settings: SharedSettings) -> None:
    """Raise ConfigurationError if only some of the files that TLS needs are set."""
    keys = ("cert_file", "key_file", "ca_file")
    missing = [each for each in keys if getattr(settings, f"tls_{each}") is None]
    given = [each for each in (*keys, "client_ca_file") if getattr(settings, f"tls_{each}")]
    if given and missing:
        raise ConfigurationError(
            f"TLS: {', '.join(given)} is set without {' and '.join(missing)}: set cert_file,"
            " key_file and ca_file in [tls] (--tls-cert, --tls-key, --tls-ca), or none of them"
        )
    is_optional = settings.tls_client_certificates == "optional"
    if is_optional and not (settings.tls_client_ca_file and settings.auth_admins):
        raise ConfigurationError(
            "client_certificates in [tls] is optional, and a client without a certificate needs a"
            " token: set client_ca_file in [tls], and [auth] (--tls-client-ca, --auth-admin), or"
            " leave it out"
        )


def check_auth(settings: SharedSettings) -> None:
    """Raise ConfigurationError if the settings of identities do not belong together."""
    names = ("admins", "servers", "monitors", "jwks_file", "jwks_url", "issuer", "audience")
    values = {each: getattr(settings, f"auth_{each}") for each in names}
    given = [name for name, value in values.items() if value]
    for name in ("admins", "servers", "monitors"):
        for each in values[name]:
            _check_subject(name, each)
    if given and not values["admins"]:
        raise ConfigurationError(
            f"{', '.join(given)} in [auth] without admins: name the administrators (--auth-admin),"
            " as nobody else could give rights"
        )
    if given and settings.tls_cert_file is None:
        raise ConfigurationError(
            "[auth] needs TLS, as certificates and tokens must not travel in plain text: set"
            " cert_file, key_file and ca_file in [tls] (--tls-cert, --tls-key, --tls-ca)"
        )
    keys = [each for each in given if each.startswith("jwks")]
    if len(keys) > 1:
        raise ConfigurationError("[auth] has jwks_file and jwks_url: give one of them")
    if settings.auth_jwks_ca_file is not None and "jwks_url" not in keys:
        raise ConfigurationError("[auth] has jwks_ca_file without jwks_url: give that too")
    of_tokens = [each for each in (*keys, "issuer", "audience") if each in given]
    if of_tokens and not (keys and values["issuer"] and values["audience"]):
        raise ConfigurationError(
            f"[auth] has {', '.join(of_tokens)}, and tokens need all of jwks_file or jwks_url,"
            " issuer and audience: set the others too, or none of them"
        )


def _check_subject(name: str, text: str) -> None:
    try:
        subject = parse_subject(text)
    except ValueError as error:
        raise ConfigurationError(f"{name} in [auth]: {text!a} is not a subject: {error}") from error
    if name == "servers" and "=" not in subject:
        raise ConfigurationError(
            f"servers in [auth]: {text!a} is the subject of a token, and servers have certificates:"
            " write theirs as in CN=node1"
        )


def is_wildcard(host: str) -> bool:
    """Whether `host` means every interface, which is no address to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def join_address(host: str, port: int) -> str:
    """Return host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_host(name: str, host: str) -> None:
    from sbp_core.client.connecting import parse_endpoint

    try:
        parse_endpoint(join_address(host, 1))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{name}: {host!a} is not a host; expected a host name or an IP address without a port"
        ) from error
