"""The public keys of the issuer of tokens: a JSON Web Key Set (RFC 7517) in a file or at a URL.

The key decides the algorithm; the header of a token may only name it. A set has public keys of
three kinds: Ed25519 (EdDSA), P-256 (ES256) and RSA of 2048 bits or more (RS256). `KeyFile` and
`KeyUrl` keep the last keys that could be used.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import ssl
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit

from joserfc import jwk, jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import JWSRegistry

from sbp_core import limits
from sbp_core.access.identity import SUBJECT_LENGTH_MAX
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import read_regular

_LOG: Final = logging.getLogger(__name__)

KEYS_MAX: Final = 100
"""Keys of one set."""
FETCH_TIMEOUT_MS: Final = 5_000
FETCH_INTERVAL_MS: Final = 600_000
"""Age of keys of a URL after which they are fetched again, with the next token."""
FETCH_PAUSE_MS: Final = 60_000
"""Shortest pause between fetches for a token with an unknown key, and longest after failures."""
_FIRST_PAUSE_MS: Final = 1_000
"""Pause after the first failure. The pause doubles with each failure in a row."""
_RSA_BITS_MIN: Final = 2048


@dataclass(frozen=True, slots=True)
class _Kind:
    """Keys of one kind: their members in a set, and the names of their algorithm in a header."""

    members: tuple[str, ...]
    algorithm: str
    names: tuple[str, ...]


_KINDS: Final[Mapping[tuple[object, object], _Kind]] = {
    ("OKP", "Ed25519"): _Kind(("crv", "x"), "Ed25519", ("EdDSA", "Ed25519")),
    ("EC", "P-256"): _Kind(("crv", "x", "y"), "ES256", ("ES256",)),
    ("RSA", None): _Kind(("n", "e"), "RS256", ("RS256",)),
}
"""By type and curve. Ed25519 is the name of RFC 9864 for EdDSA with that curve."""
ALGORITHMS: Final = tuple(kind.names[0] for kind in _KINDS.values())


class _OnlyAlgorithm(JWSRegistry):
    """The algorithm of one key, under its names."""

    def __init__(self, kind: _Kind) -> None:
        super().__init__(strict_check_header=False)
        self._kind = kind

    def get_alg(self, name: str) -> Any:
        if name not in self._kind.names:
            raise UnsupportedAlgorithmError
        return self.algorithms[self._kind.algorithm]


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies tokens; `kid` is its name, if it has one."""

    kid: str | None
    _kind: _Kind
    _key: Any = field(repr=False)

    def verifies(self, token: bytes) -> bool:
        """Whether the key signed a token."""
        try:
            jws.deserialize_compact(token, self._key, registry=_OnlyAlgorithm(self._kind))
        except (JoseError, ValueError):
            return False
        return True

    def is_named(self, algorithm: object) -> bool:
        """Whether a header's `alg` is that of the key."""
        return algorithm in self._kind.names


def parse_keys(data: bytes) -> tuple[PublicKey, ...]:
    """Return the keys of a JSON Web Key Set (RFC 7517) that can verify tokens.

    Keys for encryption, and keys of other kinds, are left out. Raises ValueError, with the reason,
    for what is no set, for private and symmetric keys, and where no key is left.
    """
    found = parse_object(data).get("keys")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError('it is no JSON Web Key Set: {"keys": [...]}')
    if len(found) > KEYS_MAX:
        raise ValueError(f"it has {len(found)} keys, and {KEYS_MAX} are the most")
    keys = [key for key in map(_maybe_key, found) if key is not None]
    if not keys:
        raise ValueError(f"it has no key for {', '.join(ALGORITHMS)}")
    names = [key.kid for key in keys]
    if len(keys) > 1 and (None in names or len({*names}) < len(names)):
        raise ValueError("each of several keys needs a kid of its own")
    return tuple(keys)


def _maybe_key(member: Mapping[str, object]) -> PublicKey | None:
    if member.get("kty") == "oct":
        raise ValueError("it has a symmetric key (kty oct), with which readers could sign")
    if "d" in member:
        raise ValueError("it has a private key, which belongs to the issuer only")
    type_and_curve = (member.get("kty"), member.get("crv"))
    kind = next((kind for each, kind in _KINDS.items() if each == type_and_curve), None)
    if kind is None or member.get("use", "sig") != "sig":
        return None
    if member.get("alg", kind.names[0]) not in kind.names:
        return None
    kid = member.get("kid")
    if kid is not None and not (isinstance(kid, str) and 0 < len(kid) <= SUBJECT_LENGTH_MAX):
        raise ValueError(f"the kid of a key has to be a text of 1 to {SUBJECT_LENGTH_MAX} letters")
    parts: dict[str, Any] = {each: member.get(each) for each in ("kty", *kind.members)}
    if parts["kty"] == "RSA":
        bits = _bits_of(parts["n"])
        if bits < _RSA_BITS_MIN:
            raise ValueError(f"an RSA key has {bits} bits, and {_RSA_BITS_MIN} are the least")
    try:
        key: Any = jwk.import_key(parts)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"a key of type {parts['kty']} is damaged") from error
    return PublicKey(kid, kind, key)


def _bits_of(modulus: object) -> int:
    try:
        return int.from_bytes(base64.urlsafe_b64decode(f"{modulus}==")).bit_length()
    except ValueError:
        return 0


class KeySource(ABC):
    """Where the keys are. Threads may share it."""

    @abstractmethod
    def current(self) -> Sequence[PublicKey]:
        """Return the newest keys that could be used."""

    @abstractmethod
    def reload(self) -> None:
        """Read the keys again. If they cannot be used, that is logged and the former ones stay."""

    timeout_ms: int = FETCH_TIMEOUT_MS
    """How long a request waits for `reload` at most."""
    pause_ms: int = FETCH_PAUSE_MS
    """The shortest pause after the last fetch."""
    failed_count: int = 0
    """Fetches in a row that failed."""
    failure: str | None = None
    """Why the last fetch failed; None if it succeeded."""

    def is_due(self, *, is_unknown: bool) -> bool:
        """Whether to `reload` first: the keys are old, or a token has a key that `is_unknown`."""
        del is_unknown
        return False


class KeyFile(KeySource):
    """The keys in a file, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises ConfigurationError if it cannot be used."""
        self._path = path
        self._lock = threading.Lock()
        self._seen = self._maybe_stamp()
        try:
            self._keys = self._read()
        except ValueError as error:
            raise ConfigurationError(
                f"jwks_file {path}: {error}; give the file with the public keys of the issuer"
            ) from error

    def current(self) -> Sequence[PublicKey]:
        """Return the keys."""
        if self._maybe_stamp() != self._seen:
            self.reload()
        return self._keys

    def reload(self) -> None:
        """Read the file again."""
        with self._lock:
            self._seen = self._maybe_stamp()
            try:
                self._keys = self._read()
            except ValueError as error:
                _LOG.warning("keys refused, the former ones stay file=%s: %s", self._path, error)
            else:
                _LOG.info("keys read again file=%s count=%d", self._path, len(self._keys))

    def _read(self) -> tuple[PublicKey, ...]:
        try:
            return parse_keys(read_regular(self._path, limits.SMALL_FILE_BYTES_MAX))
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror}") from error

    def _maybe_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class KeyUrl(KeySource):
    """The keys at a URL. None before the first fetch."""

    def __init__(
        self,
        url: str,
        ca_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fetch nothing yet. Authorities in `ca_file`, or else of the system, are trusted.

        Raises ConfigurationError for another URL than of https, or a file without authorities.
        """
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.username is not None:
            raise ConfigurationError(
                "jwks_url: expected a URL of https without a user; keys that are fetched without"
                " TLS could be anybody's"
            )
        try:
            ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ConfigurationError(
                f"jwks_ca_file {ca_file}: {error.strerror or error}; give the authority of the"
                " server of jwks_url in PEM"
            ) from error
        self._url, self._ca_file = url, ca_file
        self._clock = clock
        self.failure = "nothing was fetched yet"
        self._lock = threading.Lock()
        self._keys: tuple[PublicKey, ...] = ()
        self._tried_at = self._fetched_at = -math.inf

    def current(self) -> Sequence[PublicKey]:
        """Return the keys that were fetched last."""
        return self._keys

    def is_due(self, *, is_unknown: bool) -> bool:
        """Whether it is time for a fetch, or one is under way."""
        now = self._clock()
        if now - self._tried_at < self.pause_ms / 1000:
            return self._lock.locked()
        return is_unknown or now - self._fetched_at >= FETCH_INTERVAL_MS / 1000

    def reload(self) -> None:
        """Fetch the keys, unless another thread just has."""
        asked_at = self._clock()
        with self._lock:
            if self._tried_at > asked_at:
                return
            self._tried_at = self._clock()
            try:
                self._keys = parse_keys(_fetch(self._url, self._ca_file))
            except (OSError, HTTPException, ValueError) as error:
                self.failure = str(error.reason if type(error) is URLError else error)
                self.pause_ms = min(FETCH_PAUSE_MS, 2 * self.pause_ms)
                if not self.failed_count:
                    self.pause_ms = _FIRST_PAUSE_MS
                self.failed_count += 1
                _LOG.warning(
                    "keys not fetched, the former ones stay url=%s: %s", self._url, self.failure
                )
            else:
                self.failure, self.failed_count, self.pause_ms = None, 0, FETCH_PAUSE_MS
                self._fetched_at = self._clock()
                _LOG.info("keys fetched url=%s count=%d", self._url, len(self._keys))
            self._tried_at = self._clock()


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to what could be read or changed on its way."""

    def redirect_request(  # noqa: PLR0917 - as the base class has it
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            raise OSError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, ca_file: Path | None) -> bytes:
    """Return what is at a URL. Raises OSError, HTTPException or ValueError."""
    deadline = time.monotonic() + FETCH_TIMEOUT_MS / 1000
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _OnlyHttps(),
    ):
        opener.add_handler(handler)
    data = b""
    with opener.open(url, timeout=FETCH_TIMEOUT_MS / 1000) as answer:
        while part := answer.read1(limits.RECEIVE_BUFFER_BYTES):
            data += part
            if len(data) > limits.SMALL_FILE_BYTES_MAX:
                raise ValueError(f"it has more than {limits.SMALL_FILE_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"it takes longer than {FETCH_TIMEOUT_MS} ms")
    return data


def new_key(algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a new private key and its public one, for one of ALGORITHMS, as JSON Web Keys."""
    (type_, curve), kind = next(
        (each, kind) for each, kind in _KINDS.items() if kind.names[0] == algorithm
    )
    generate: Any = jwk.generate_key
    made = generate(type_, curve or _RSA_BITS_MIN)
    known = {"kid": made.thumbprint(), "alg": algorithm, "use": "sig"}
    members = ("kty", *kind.members)
    public = {each: made.as_dict(private=False)[each] for each in members}
    return made.as_dict(private=True) | known, public | known


def sign(private: Mapping[str, Any], payload: bytes) -> str:
    """Return a token with this payload, signed with a private JSON Web Key of `new_key`.

    Raises ValueError if that is not one.
    """
    kind = _KINDS.get((private.get("kty"), private.get("crv")))
    if kind is None or "d" not in private:
        raise ValueError("it has no private key of `sbp token keys`")
    header = {"alg": kind.names[0], "typ": "JWT"}
    if private.get("kid") is not None:
        header["kid"] = private["kid"]
    parts = {name: value for name, value in private.items() if name not in {"alg", "use", "kid"}}
    try:
        key = jwk.import_key(parts)
        return jws.serialize_compact(header, payload, key, registry=_OnlyAlgorithm(kind))
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise ValueError("its private key is damaged") from error


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object in which no name is twice. Raises ValueError for all else."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON, or has a name twice") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of what came from outside
    return found


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
