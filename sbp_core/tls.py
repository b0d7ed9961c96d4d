"""TLS: which files one end uses, the contexts that follow from them, and connections without I/O.

TLS 1.3 is the minimum: it has neither compression nor renegotiation. Sessions are not resumed, so
that files that were replaced hold for every connection that is made from then on.

`Tls` names the files of a client, `ServerTls` and `PublicTls` those of a server. `ready` reads
them; from then on they are read again when they have changed, as the next connection is made, and
at SIGHUP. Files that cannot be used are reported once, and the former ones stay. `Channel` is one
connection.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.tls_errors import PlainTextError, reason_of

_LOG: Final = logging.getLogger(__name__)

_HANDSHAKE_RECORD: Final = 0x16
_ALERT_RECORD: Final = 0x15
_DER: Final = 2
"""`_ssl.ENCODING_DER`."""
"""The first byte of what a TLS peer sends. A frame that begins so is too large to be one."""
SEALED_BYTES: Final = 7 * 16 * limits.KIB
"""Bytes that are encrypted at a time, in full records; above it, malloc asks the system."""
_FED_BYTES: Final = 64 * limits.KIB
"""Bytes that are decrypted at a time. OpenSSL keeps buffers for the most that it once had."""
RECORD_BYTES_MAX: Final = 16 * limits.KIB + 256 + 5
"""A TLS record (RFC 8446, section 5.2) with its header."""

_BARREN_BYTES_MAX: Final = 512 * limits.KIB
"""Bytes in a row, handshake included, that carry nothing for the application."""

_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM files of a client: paths, which the process that connects reads.

    `ca_file` has the authorities whose servers are trusted; those of the system without it. A
    server may want a certificate of the client, which is in `cert_file`, with its chain. Its key is
    in `key_file`.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None

    def __post_init__(self) -> None:
        _check_pair(self.cert_file, self.key_file)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The PEM files of a server: its certificate and key, and whom it trusts.

    Servers of a cluster show each other their certificates, which have to be of an authority in
    `ca_file`. With `client_ca_file` every client has to show one of an authority in that, or in
    `ca_file`, unless `is_client_optional`: then it may. Only an authority in `ca_file` vouches for
    servers.
    """

    cert_file: str | Path
    key_file: str | Path
    ca_file: str | Path
    client_ca_file: str | Path | None = None
    is_client_optional: bool = False

    @property
    def as_client(self) -> Tls:
        """The files with which the server connects to others of its cluster."""
        return Tls(self.ca_file, self.cert_file, self.key_file)


@dataclass(frozen=True, slots=True)
class PublicTls:
    """The PEM files of a server whose clients show no certificates, such as browsers."""

    cert_file: str | Path
    key_file: str | Path


Files = Tls | ServerTls | PublicTls
"""The files of one end."""


def _check_pair(cert_file: object, key_file: object) -> None:
    if (cert_file is None) != (key_file is None):
        given, missing = ("key", "certificate") if cert_file is None else ("certificate", "key")
        raise ConfigurationError(
            f"TLS: a {given} file is set without a {missing} file; set both or neither"
        )


class Contexts:
    """The newest context of one end. Threads may share it."""

    def __init__(self, files: Files) -> None:
        """Read the files. Raises ConfigurationError if they cannot be used."""
        self.files = files
        self._lock = threading.Lock()
        self._seen = self._stamp()
        """The files as they were read last, whether they could be used or not."""
        self._newest = _make_context(files), _maybe_of_servers(files)
        self.certificates = _read_certificates(files)
        """The files with certificates, as they were read last and could be used."""
        _all_contexts.add(self)

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._stamp() != self._seen:
            self.reload()
        return self._newest[0]

    def reload(self) -> None:
        """Read the files again. If they cannot be used, that is logged and the former ones stay."""
        with self._lock:
            self._seen = self._stamp()
            try:
                self._newest = _make_context(self.files), _maybe_of_servers(self.files)
                self.certificates = _read_certificates(self.files)
            except ConfigurationError as error:
                _LOG.warning("TLS files refused, the former ones stay: %s", error)
            else:
                _LOG.info("TLS files read again: %s", ", ".join(map(str, _paths(self.files))))

    def client_channel(self, host: str) -> Channel:
        """Return the channel of a new connection to `host`, whose certificate must name it."""
        name = host.partition("%")[0].rstrip(".")  # without the zone of an IPv6 address
        return Channel(self.current().wrap_bio, name)

    def server_channel(self) -> Channel:
        """Return the channel of a connection that was accepted."""
        self.current()
        context, of_servers = self._newest
        return Channel(context.wrap_bio, None, of_servers)

    def _stamp(self) -> _Stamp:
        return tuple(map(_maybe_stamp, _paths(self.files)))


_all_contexts: Final[WeakSet[Contexts]] = WeakSet()


@lru_cache(maxsize=64)
def ready(files: Files) -> Contexts:
    """Return the contexts of these files, the same for all that use them in this process.

    Raises ConfigurationError if the files cannot be used.
    """
    return Contexts(files)


def reload_all() -> bool:
    """Read the files of all contexts of this process again; return whether there are any."""
    found = all_contexts()
    for each in found:
        each.reload()
    return bool(found)


def all_contexts() -> list[Contexts]:
    """Return the contexts of all ends in this process."""
    return list(_all_contexts)


def _paths(files: Files) -> list[Path]:
    key = [] if files.key_file is None else [Path(files.key_file)]
    return [*_certificate_paths(files), *key]


def _certificate_paths(files: Files) -> list[Path]:
    found = [files.cert_file]
    if not isinstance(files, PublicTls):
        found.append(files.ca_file)
    if isinstance(files, ServerTls):
        found.append(files.client_ca_file)
    return [Path(each) for each in found if each is not None]


def _maybe_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _make_context(files: Files) -> ssl.SSLContext:
    is_server = not isinstance(files, Tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if is_server:
        context.num_tickets = 0
    authorities = [] if isinstance(files, PublicTls) else [files.ca_file]
    if isinstance(files, ServerTls):
        authorities.append(files.client_ca_file)
        wants_all = files.client_ca_file is not None and not files.is_client_optional
        context.verify_mode = ssl.CERT_REQUIRED if wants_all else ssl.CERT_OPTIONAL
    for each in authorities:
        if each is not None:
            _load_authorities(context, Path(each))
    if isinstance(files, Tls) and files.ca_file is None:
        context.load_default_certs()
    if files.cert_file is not None and files.key_file is not None:
        _load_pair(context, Path(files.cert_file), Path(files.key_file))
    return context


def _maybe_of_servers(files: Files) -> frozenset[bytes] | None:
    """Return the certificates, in DER, that vouch for servers; None if all that are trusted do."""
    if not isinstance(files, ServerTls) or files.client_ca_file is None:
        return None
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        found = x509.load_pem_x509_certificates(Path(files.ca_file).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"TLS: {files.ca_file} cannot be read ({error}); give certificates in PEM"
        ) from error
    return frozenset(each.public_bytes(Encoding.DER) for each in found)


def _read_certificates(files: Files) -> dict[Path, bytes]:
    found = {}
    for path in _certificate_paths(files):
        try:
            found[path] = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error
    return found


def _verified_chain(session: ssl.SSLObject) -> list[bytes]:
    """Return the certificate of the peer, in DER, and those that vouch for it."""
    if sys.version_info >= (3, 13):
        return list(session.get_verified_chain())
    inner: Any = session._sslobj  # type: ignore[attr-defined]  # noqa: SLF001 - public since 3.13
    return [each.public_bytes(_DER) for each in inner.get_verified_chain() or ()]


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"TLS: {path} has no certificates of authorities in PEM ({reason_of(error)}); give the"
            " file of the authority, which begins with -----BEGIN CERTIFICATE-----"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    for path in (cert_file, key_file):
        try:
            path.open("rb").close()  # the system's error of `load_cert_chain` does not say which
        except OSError as error:
            raise _unreadable(path, error) from error
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                f"TLS: the key in {key_file} is not that of the certificate in {cert_file}; give"
                " the key with which the certificate was requested"
            ) from error
        raise ConfigurationError(
            f"TLS: {cert_file} and {key_file} are no certificate and key in PEM"
            f" ({reason_of(error)}); each begins with a line -----BEGIN ...-----"
        ) from error
    except _EncryptedKeyError as error:
        raise ConfigurationError(
            f"TLS: the key in {key_file} is encrypted; decrypt it with `openssl pkey`, and protect"
            " the file by its mode"
        ) from error
    except OSError as error:
        raise _unreadable(cert_file, error) from error


class _EncryptedKeyError(Exception):
    """A key needs a password, which nobody is there to type."""


def _no_password() -> str:
    raise _EncryptedKeyError


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"TLS: {path} cannot be read: {error.strerror}; name a file that this user may read"
    )


def _made(text: str) -> ssl.SSLError:
    """Return an error with the attributes of those that OpenSSL makes."""
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, text)
    error.reason = text
    return error


class Channel:
    """One TLS connection, without I/O: what was received goes in, what is to be sent comes out.

    Threads may share it. Calls raise ssl.SSLError when the connection cannot go on; `take` has an
    alert to send then, perhaps.
    """

    def __init__(
        self,
        wrap: Callable[..., ssl.SSLObject],
        host: str | None,
        of_servers: frozenset[bytes] | None = None,
    ) -> None:
        self._of_servers = of_servers
        self._received = ssl.MemoryBIO()
        self._fed = memoryview(b"")
        """Received bytes that are not in `_received` yet."""
        self._to_send = ssl.MemoryBIO()
        self._object = wrap(
            self._received, self._to_send, server_side=host is None, server_hostname=host
        )
        self._read: Any = self._object.read  # declared to return bytes, also with a buffer
        self._lock = threading.Lock()
        self._failure: ssl.SSLError | None = None
        self._is_first = True
        self._barren_bytes = 0
        """Bytes received since something was decrypted."""
        self.is_open = False
        """Whether the handshake is over."""
        self.is_ended = False
        """Whether the peer said that it sends nothing more."""
        self.has_received = False
        """Whether the application was sent anything."""
        self.peer_certificate: bytes | None = None
        """The certificate that the peer has shown, in DER, which was verified; None without one."""
        self.may_be_server = False
        """Whether an authority of servers vouches for that certificate."""

    @property
    def has_peer_certificate(self) -> bool:
        """Whether the peer has shown a certificate, which was verified."""
        return self.peer_certificate is not None

    @property
    def pending_bytes(self) -> int:
        """The most bytes that may be here and not decrypted yet."""
        return self._received.pending + len(self._fed) + RECORD_BYTES_MAX

    def feed(self, data: memoryview) -> None:
        """Accept received bytes, which stay as they are until `keep` or the next call.

        Raises PlainTextError if the peer does not speak TLS.
        """
        self.keep()
        if self._is_first and data:
            self._is_first = False
            if data[0] not in (_HANDSHAKE_RECORD, _ALERT_RECORD):
                raise PlainTextError
        self._barren_bytes += len(data)
        if self._barren_bytes > _BARREN_BYTES_MAX:
            raise _made(f"{self._barren_bytes} bytes with nothing for the application")
        self._fed = data

    def keep(self) -> None:
        """Copy what was fed and is not decrypted yet: its memory is used again."""
        with self._lock:
            self._received.write(self._fed)
            self._fed = self._fed[:0]

    def shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is over."""
        with self._lock:
            while True:
                try:
                    self._object.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    if not self._fed:
                        return False
                    self._pull()
            # Once: a session that has failed does not tell any more.
            self.peer_certificate = self._object.getpeercert(binary_form=True) or None
            self.may_be_server = self.has_peer_certificate and (
                self._of_servers is None
                or not self._of_servers.isdisjoint(_verified_chain(self._object))
            )
            self.is_open = True
            return True

    def read_into(self, target: memoryview) -> int:
        """Decrypt what was received; return how many bytes are in `target` now, 0 if none came."""
        count = 0
        with self._lock:
            while count < len(target) and not self.is_ended:
                try:
                    read_bytes = self._read(len(target) - count, target[count:])
                except ssl.SSLWantReadError:
                    if not self._fed:
                        break
                    self._pull()
                    continue
                except ssl.SSLZeroReturnError:
                    read_bytes = 0
                except ssl.SSLError as error:
                    self._failure = error
                    break
                self.is_ended = not read_bytes
                count += read_bytes
        if count:
            self._barren_bytes = 0
            self.has_received = True
        elif self._failure is not None:
            raise self._failure
        return count

    def _pull(self) -> None:
        self._received.write(self._fed[:_FED_BYTES])
        self._fed = self._fed[_FED_BYTES:]

    def seal(self, buffers: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytes]:
        """Yield what to send for `buffers`, in small pieces: their memory is used again."""
        for chunk in _chunks(buffers):
            rest = memoryview(chunk)
            with self._lock:
                while rest:
                    rest = rest[self._object.write(rest) :]
                piece = self._to_send.read()
            yield piece

    def take(self) -> bytes:
        """Return what is to be sent of the protocol itself."""
        with self._lock:
            return self._to_send.read()

    def end(self) -> bytes:
        """Return what tells the peer that nothing more is sent."""
        if not self.is_open:
            return b""
        with self._lock:
            with contextlib.suppress(ssl.SSLError):  # it waits for the same from the peer
                self._object.unwrap()
            return self._to_send.read()


def _chunks(buffers: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Yield the bytes of `buffers` again, at most SEALED_BYTES at a time."""
    parts: list[bytes | bytearray | memoryview] = []
    room = SEALED_BYTES
    for each in buffers:
        rest = memoryview(each)
        while len(rest) > room:
            yield b"".join([*parts, rest[:room]])
            rest, parts, room = rest[room:], [], SEALED_BYTES
        parts.append(rest)
        room -= len(rest)
    if parts:
        yield b"".join(parts)
