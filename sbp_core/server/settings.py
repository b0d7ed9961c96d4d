"""Settings of servers: how a setting is declared and checked, and the settings of both servers.

A setting is one field: its declaration has the default, the limit that is checked, and the text of
conf/server.toml. `sbp_core.cluster` offers the fields as settings of `sbp serve`.

An address is host:port, as servers advertise it (SPEC "HEARTBEAT", advertise_addr).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from sbp_core import limits
from sbp_core.access.identity import canonical_subject, parse_subject, subject_of_certificate
from sbp_core.client.connecting import parse_endpoint
from sbp_core.errors import ConfigurationError
from sbp_core.server.gate import Gate
from sbp_core.sockets import is_loopback
from sbp_core.tls import Contexts, ServerTls, Tls, ready

SettingKey = tuple[str, str]
"""Section and key in a configuration file."""


def setting(doc: str, limit: str, *, default: Any = MISSING, key: SettingKey | None = None) -> Any:
    """Declare a setting whose class checks it; without a default it has to be given.

    Without a `key` its name is its key, in the section of the server or the command.
    """
    metadata = {"doc": doc, "unit": "", "limit": limit} | _keyed(key)
    return field(default=default, metadata=metadata)


def integer_setting(
    doc: str,
    low: int,
    high: int,
    *,
    default: int | Any = MISSING,
    unit: str = "",
    key: SettingKey | None = None,
) -> Any:
    """Declare a setting that is an integer from `low` to `high`."""
    metadata = {"doc": doc, "unit": unit, "limit": f"{low}..{high}", "bounds": (low, high)}
    return field(default=default, metadata=metadata | _keyed(key))


def choice_setting(
    doc: str,
    choices: tuple[str | bool, ...],
    *,
    default: str | bool | None,
    key: SettingKey | None = None,
) -> Any:
    """Declare a setting that has one of some values, or None if that is the default."""
    words = ", ".join(str(each).lower() if isinstance(each, bool) else each for each in choices)
    metadata = {"doc": doc, "unit": "", "limit": words, "choices": choices}
    return field(default=default, metadata=metadata | _keyed(key))


def tls_setting(name: str, doc: str) -> Any:
    """Declare a file of TLS, which is `name` in [tls] of a configuration file."""
    return setting(doc, "a file in PEM", default=None, key=("tls", name))


def auth_setting(name: str, doc: str, limit: str, *, default: Any = None) -> Any:
    """Declare a setting of identities, which is `name` in [auth] of a configuration file."""
    return setting(doc, limit, default=default, key=("auth", name))


def _keyed(key: SettingKey | None) -> dict[str, str]:
    return {} if key is None else {"section": key[0], "key": key[1]}


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
        is_left_out = value is None and each.default is None
        if (
            choices
            and not is_left_out
            and (type(value), value) not in [(type(one), one) for one in choices]
        ):
            key, section = each.metadata.get("key", each.name), each.metadata.get("section")
            where = key if section is None else f"{key} in [{section}]"
            raise ConfigurationError(f"{where}: expected one of {limit}, got {value!r}")


class Exposure(Enum):
    """The clients that may connect from other machines."""

    NOBODY = "nobody"
    CERTIFIED = "clients with a certificate"
    IDENTIFIED = "clients with an identity"
    ANYBODY = "anybody"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Where a server keeps its data and where it listens.

    Raises ConfigurationError when a value cannot work.
    """

    data_dir: Path = setting(
        "Directory of the data; created when missing, used by one process at a time.",
        "a directory that can be written",
    )
    host: str = setting(
        "Interface to listen on.",
        "a host name or an IP address; 0.0.0.0 and :: need advertise_host",
        default="127.0.0.1",
    )
    insecure: bool = choice_setting(
        "Whether host may be reached from other machines, though clients show no certificates: all"
        " that reach a server can read, write and delete everything.",
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
    tls_cert_file: Path | None = tls_setting(
        "cert_file",
        "Certificate of the server, with its chain: it names the host that the server advertises."
        " With it the server speaks TLS only. The files are read again when they change.",
    )
    tls_key_file: Path | None = tls_setting("key_file", "Key of the certificate, not encrypted.")
    tls_ca_file: Path | None = tls_setting(
        "ca_file",
        "Authorities of the certificates that the servers of the cluster show each other.",
    )
    tls_client_ca_file: Path | None = tls_setting(
        "client_ca_file",
        "Authorities of the certificates that clients have to show; when not set, clients need"
        " none. Servers need one of an authority in ca_file.",
    )
    tls_client_certificates: str = choice_setting(
        "Whether clients have to show a certificate, if client_ca_file is set; optional is for"
        " clients with a token, and needs [auth].",
        ("required", "optional"),
        default="required",
        key=("tls", "client_certificates"),
    )

    auth_admins: tuple[str, ...] = auth_setting(
        "admins",
        "Subjects of the administrators; with it every request needs an identity: a certificate of"
        " an authority in [tls], or a token.",
        "subjects of certificates, such as CN=alice,O=Acme, or of tokens",
        default=(),
    )
    auth_servers: tuple[str, ...] = auth_setting(
        "servers",
        "Subjects of the certificates of the cluster's servers; when empty, that of the server's"
        " own certificate as it is at the start.",
        "subjects of certificates",
        default=(),
    )
    auth_monitors: tuple[str, ...] = auth_setting(
        "monitors",
        "Subjects that may read the metrics, and why a server is not ready, at its admin_port, and"
        " nothing else; administrators may too.",
        "subjects of certificates, or of tokens",
        default=(),
    )
    auth_jwks_file: Path | None = auth_setting(
        "jwks_file",
        "Public keys of the issuer of tokens; the file is read again when it changes. Without it"
        " and jwks_url no tokens are accepted.",
        "a JSON Web Key Set",
    )
    auth_jwks_url: str | None = auth_setting(
        "jwks_url",
        "URL of these keys instead: they are fetched at the start, every ten minutes while tokens"
        " come, and for an unknown key once a minute at most. While they cannot be fetched they are"
        " asked for again after 1 s, 2 s, 4 s, and so on up to a minute.",
        "a URL of https",
    )
    auth_jwks_ca_file: Path | None = auth_setting(
        "jwks_ca_file",
        "Authorities of the certificate at jwks_url; the authorities of the system when not set.",
        "a file in PEM",
    )
    auth_issuer: str | None = auth_setting(
        "issuer", "Issuer that tokens have to name (iss).", "a text; needed for tokens"
    )
    auth_audience: str | None = auth_setting(
        "audience",
        "Audience that tokens have to name (aud).",
        "a text, such as the name of the cluster; needed for tokens",
    )
    quotas_file: Path | None = setting(
        "File with the section [quotas], which is read again at SIGHUP.",
        "a configuration file",
        default=None,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        check_tls(self)
        check_auth(self)
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
        return None if self.tls is None else ready(self.tls)

    def gate(self) -> Gate:
        """Return what identifies peers. Raises ConfigurationError if its files cannot be used."""
        if not self.auth_admins:
            return Gate()
        admins = frozenset(map(canonical_subject, self.auth_admins))
        monitors = frozenset(map(canonical_subject, self.auth_monitors))
        servers = frozenset(map(canonical_subject, self.auth_servers))
        if not servers:
            assert self.tls_cert_file is not None
            servers = frozenset({_own_subject(self.tls_cert_file)})
        tokens = None
        if self.auth_issuer is not None and self.auth_audience is not None:
            from sbp_core.access.tokens import ready as tokens_of

            keys = (self.auth_jwks_file, self.auth_jwks_url, self.auth_jwks_ca_file)
            tokens = tokens_of(*keys, self.auth_issuer, self.auth_audience)
        return Gate(admins, servers, tokens, monitors)

    def public_endpoint(self, port: int) -> str:
        """Return the "host:port" that clients connect to, for a server that listens on `port`."""
        host = self.host if self.advertise_host is None else self.advertise_host
        return join_address(host, self.advertise_port or port)


def check_reach(host: str, addresses: Iterable[str], exposure: Exposure) -> list[str]:
    """Return the addresses of `host` that other machines reach.

    Raises ConfigurationError if there are any, and nobody may connect from other machines.
    """
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


def check_tls(settings: Any) -> None:
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


def check_auth(settings: Any) -> None:
    """Raise ConfigurationError if the settings of identities do not belong together."""
    names = ("admins", "servers", "monitors", "jwks_file", "jwks_url", "issuer", "audience")
    values = {each: getattr(settings, f"auth_{each}") for each in names}
    given = [name for name, value in values.items() if value]
    for name in ("admins", "servers", "monitors"):
        if not all(isinstance(each, str) for each in values[name]):
            raise ConfigurationError(f"{name} in [auth]: expected subjects, got {values[name]!r}")
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


def _own_subject(cert_file: Path) -> str:
    try:
        subject = subject_of_certificate(cert_file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"TLS: the certificate in {cert_file} cannot be read; give one in PEM"
        ) from error
    if not subject:
        raise ConfigurationError(
            f"[auth] servers is not set, and the certificate in {cert_file} has no subject: use one"
            " that has, as others of the same authority could be clients"
        )
    return subject


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
