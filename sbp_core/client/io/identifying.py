"""The identity of one connection of a client: when the token is sent, and sent again.

The token is read each time it is sent, and is not kept.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sbp_core.access.credentials import TOKEN_BYTES_MAX, BearerToken, Credentials
from sbp_core.errors import ConfigurationError, SbpError, UnauthenticatedError
from sbp_core.regular_files import read_regular
from sbp_core.session.negotiation import identity_offer, maybe_identity_end
from sbp_core.wire.headers import Feature

_LOG: Final = logging.getLogger(__name__)

_TOKEN: Final = re.compile(rb"[A-Za-z0-9_.-]+")
NO_IDENTITIES: Final = (
    "a token was sent, and the cluster accepts none: it would allow everything for any token; send"
    " none"
)
_RENEWED_AFTER: Final = 0.8
"""The share of an identity's lifetime after which it is renewed."""
_PAUSE_SECONDS: Final = 1.0
"""The shortest pause between renewals."""


def read_token(credentials: Credentials | BearerToken) -> bytes:
    """Return the token. Raises ConfigurationError without one; the error never shows a token."""
    if isinstance(credentials, BearerToken):
        found = credentials.value
    elif credentials.token_env is not None:
        found = os.environb.get(os.fsencode(credentials.token_env), b"")
    else:
        try:
            found = read_regular(Path(str(credentials.token_file)), TOKEN_BYTES_MAX + 2)
        except OSError as error:
            raise ConfigurationError(
                f"{credentials} cannot be read: {error.strerror}; name a file that this user may"
                " read"
            ) from error
    token = found.strip()
    if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"{credentials} has no token; put a signed JSON Web Token there, {TOKEN_BYTES_MAX}"
            " bytes at most"
        )
    return token


class Identifying:
    """Offers the token of `credentials`, and knows when the accepted identity ends."""

    def __init__(self, credentials: Credentials | BearerToken) -> None:
        self._credentials = credentials
        self._due_at = self._ends_at = math.inf

    @property
    def is_due(self) -> bool:
        """Whether to offer the token before the next call."""
        return min(self._due_at, self._ends_at) <= time.monotonic()

    @property
    def has_ended(self) -> bool:
        """Whether calls have to wait for a renewal."""
        return self._ends_at <= time.monotonic()

    def offer(self) -> Feature:
        """Return the offer of the present token. Raises ConfigurationError without a token."""
        return identity_offer(read_token(self._credentials))

    def maybe_renewal(self) -> Feature | None:
        """Return the offer of the token; None if it cannot be read while the identity holds.

        Raises ConfigurationError if the token cannot be read and the identity has ended.
        """
        try:
            return self.offer()
        except ConfigurationError as error:
            if self.has_ended:
                raise
            self.postpone(error)
            return None

    def accepted(self, features: Iterable[Feature]) -> UnauthenticatedError | None:
        """Handle the answer to an offer; a server without identities declines the offer.

        Returns the error that all calls have to get, or None.
        """
        end_ms = maybe_identity_end(features)
        if end_ms is None:
            self._due_at = self._ends_at = math.inf
            if isinstance(self._credentials, BearerToken):
                return UnauthenticatedError.of(NO_IDENTITIES)
            return None
        now, left = time.monotonic(), end_ms / 1000 - time.time()
        self._ends_at = now + left
        self._due_at = now + max(_RENEWED_AFTER * left, _PAUSE_SECONDS)
        return None

    def postpone(self, reason: SbpError) -> None:
        """Try a renewal again later."""
        _LOG.warning("identity not renewed, the former one holds until it ends: %s", reason)
        self._due_at = time.monotonic() + _PAUSE_SECONDS
