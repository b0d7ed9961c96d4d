"""Tokens: JSON Web Tokens (RFC 7519) that an issuer signs for an audience.

Header parameters that bring a key of the token's own, or extensions, are refused. Base64 and JSON
have one form: no padding, no unused bits, no name twice. So a token that was changed is another
one.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from weakref import WeakSet

from sbp_core.access.credentials import TOKEN_BYTES_MAX
from sbp_core.access.identity import SUBJECT_LENGTH_MAX, is_token_subject
from sbp_core.access.keys import KeyFile, KeySource, KeyUrl, PublicKey, parse_object
from sbp_core.errors import UnauthenticatedError
from sbp_core.wording import counted

LEEWAY_MS: Final = 30_000
"""By how much the clocks of an issuer and a server may differ."""
_SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999: the largest time that a token may have."""
_PARTS: Final = 3
"""The header, the claims and the signature, separated by dots (RFC 7515, section 3.1)."""
_FORBIDDEN: Final = ("crit", "jku", "jwk", "x5u", "x5c", "b64")
"""Header parameters that bring a key, or change how the rest is read."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a verified token, which ends at `expires_at_ms`, in ms since the epoch."""

    subject: str
    expires_at_ms: int


class UnknownKeyError(UnauthenticatedError):
    """A token was signed with a key that is not in the set, or not yet."""


class Tokens:
    """Verifies the tokens that one issuer made for one audience. Threads may share it."""

    def __init__(self, keys: KeySource, issuer: str, audience: str) -> None:
        self.keys: Final = keys
        self._issuer = issuer
        self._audience = audience
        _all_tokens.add(self)

    def verify(self, token: bytes, now_ms: int) -> Claims:
        """Return the claims of a token. Raises UnauthenticatedError if it is not acceptable.

        UnknownKeyError if its key is not known.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise _refused(f"it has more than {TOKEN_BYTES_MAX} bytes", "use a smaller one")
        parts = token.split(b".")
        try:
            if len(parts) != _PARTS:
                raise ValueError(f"it has {counted(len(parts), 'part')}, not {_PARTS}")
            header, payload, _ = map(_decode, parts)
            parameters = parse_object(header)
        except ValueError as error:
            raise _refused(
                f"it is no JSON Web Token: {error}", "send one that is signed"
            ) from error
        forbidden = [each for each in _FORBIDDEN if each in parameters]
        if forbidden:
            raise _refused(f"its header has {forbidden[0]}", "let the issuer leave that out")
        key = self._key_for(parameters)
        if not key.verifies(token):
            raise _refused("its signature is wrong", "get another one from the issuer")
        try:
            claims = parse_object(payload)
        except ValueError as error:
            raise _refused(f"its claims are not valid: {error}", "ask the issuer") from error
        return self._checked(claims, now_ms)

    def wants_keys(self, token: bytes, now_ms: int) -> bool:
        """Whether to read the keys again before a token is verified."""
        if self.keys.is_due(is_unknown=False):
            return True
        if self.keys.is_due(is_unknown=True):
            try:
                self.verify(token, now_ms)
            except UnknownKeyError:
                return True
            except UnauthenticatedError:
                return False
        return False

    def _key_for(self, parameters: Mapping[str, object]) -> PublicKey:
        kid, keys = parameters.get("kid"), self.keys.current()
        if kid is None and len(keys) == 1:
            key = keys[0]
        elif kid is None and keys:
            raise _refused("its header has no kid, and there are several keys", "ask the issuer")
        else:
            named = [each for each in keys if each.kid == kid]
            if not named:
                failure = self.keys.failure
                if not keys:
                    raise UnknownKeyError.of(
                        "the token cannot be verified: this server could not fetch the keys of the"
                        f" issuer ({failure}); try again, or let an operator see the server's log"
                    )
                also = "" if failure is None else f", and newer ones cannot be fetched ({failure})"
                raise UnknownKeyError.of(
                    f"the token is refused: its key is not among those of the issuer{also}; get"
                    " another one from the issuer of this cluster"
                )
            key = named[0]
        if not key.is_named(parameters.get("alg")):
            raise _refused("its alg is not that of the key", "use the algorithm of the key")
        return key

    def _checked(self, claims: Mapping[str, object], now_ms: int) -> Claims:
        if claims.get("iss") != self._issuer:
            raise _refused(f"its iss is not {self._issuer}", "get one from that issuer")
        audiences = claims.get("aud")
        if isinstance(audiences, str):
            audiences = [audiences]
        if not isinstance(audiences, list) or self._audience not in audiences:
            raise _refused(f"its aud is not {self._audience}", "get one for that audience")
        ends_ms = _time_of(claims, "exp")
        if ends_ms is None:
            raise _refused("it has no exp", "get one that ends")
        ends_ms += LEEWAY_MS
        if ends_ms <= now_ms:
            raise _refused("it has expired", "get a new one, and put it into the token's file")
        for name in ("nbf", "iat"):
            begins_ms = _time_of(claims, name)
            if begins_ms is not None and begins_ms > now_ms + LEEWAY_MS:
                raise _refused(f"its {name} is in the future", "compare the clocks")
        subject = claims.get("sub")
        if not is_token_subject(subject):
            raise _refused(
                f"its sub is not a name of 1 to {SUBJECT_LENGTH_MAX} printable characters"
                " without =",
                "get one with such a subject",
            )
        return Claims(str(subject), ends_ms)


def unverified_subject(token: bytes) -> str:
    """Return the `sub` of a token, which is the subject if a server accepts the token.

    Raises UnauthenticatedError for what no server accepts.
    """
    try:
        subject = parse_object(_decode(token.split(b".")[1])).get("sub")
    except (IndexError, ValueError) as error:
        raise _refused("it is no JSON Web Token", "send one that is signed") from error
    if not is_token_subject(subject):
        raise _refused("its sub is not a subject", "get another one from the issuer")
    return str(subject)


_all_tokens: Final[WeakSet[Tokens]] = WeakSet()


@lru_cache(maxsize=16)
def ready(
    path: Path | None, url: str | None, ca_file: Path | None, issuer: str, audience: str
) -> Tokens:
    """Return what verifies tokens, the same for all servers of this process.

    Raises ConfigurationError if the keys cannot be used.
    """
    keys = KeyFile(path) if path is not None else KeyUrl(str(url), ca_file)
    return Tokens(keys, issuer, audience)


def reload_all() -> bool:
    """Read all keys of this process again; return whether there are any."""
    found = list(_all_tokens)
    for each in found:
        each.keys.reload()
    return bool(found)


def _refused(cause: str, remedy: str) -> UnauthenticatedError:
    return UnauthenticatedError.of(f"the token is refused: {cause}; {remedy}")


def _decode(part: bytes) -> bytes:
    """Return the bytes of a part. Raises ValueError unless it is their one form in base64url."""
    try:
        data = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("a part is not base64url") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part:
        raise ValueError("a part is not base64url")
    return data


def _time_of(claims: Mapping[str, object], name: str) -> int | None:
    """Return a time in ms since the epoch, None without it."""
    value = claims.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= _SECONDS_MAX
    ):
        raise _refused(f"its {name} is no time", "ask the issuer")
    return math.floor(1000 * value)
