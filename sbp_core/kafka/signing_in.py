"""SASL: who the caller is. The token of the cluster is what PLAIN calls the password.

OAUTHBEARER has a place for a token of its own. On a gateway that only its own machine reaches,
callers that do not sign in have the identity of the gateway.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from kio.schema.errors import ErrorCode

from sbp_core.client.async_client import AsyncClient
from sbp_core.errors import FrameError, SbpError, UnauthenticatedError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.messages import Fields, Request
from sbp_core.web.callers import Callers, is_token

HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36
_PLAIN: Final = "PLAIN"
_OAUTH: Final = "OAUTHBEARER"
MECHANISMS: Final = (_PLAIN, _OAUTH)
_BEARER: Final = re.compile(
    rb"n,(?:a=[^,]*)?,\x01(?:[^\x01]*\x01)*?auth=Bearer ([^\x01]+)\x01.*", re.DOTALL
)
_PARTS: Final = 3
_SESSION_MS: Final = 0
"""No limit here: the cluster checks a token at each request."""


class SignIn:
    """The state of a connection: not signed in, a mechanism agreed on, or signed in."""

    def __init__(self, callers: Callers, *, is_needed: bool) -> None:
        self._callers = callers
        self._is_needed = is_needed
        self._mechanism: str | None = None
        self._client: AsyncClient | None = None
        self._holding = contextlib.ExitStack()

    @property
    def is_done(self) -> bool:
        """Whether the caller may send requests."""
        return self._client is not None or not self._is_needed

    def client(self) -> AsyncClient:
        """Return the client with the identity of the caller. Raises UnauthenticatedError."""
        if self._client is None:
            if self._is_needed:
                raise UnauthenticatedError.of("the client has not signed in, and has to: use SASL")
            self._hold(None)
        assert self._client is not None
        return self._client

    async def maybe_answer(self, request: Request) -> Fields | None:
        """Return the answer to a request that is about signing in, None for any other one."""
        if request.api_key == HANDSHAKE:
            return self._agree(request.body.mechanism)
        if request.api_key == AUTHENTICATE:
            return await self._authenticate(request.body.auth_bytes)
        return None

    def close(self) -> None:
        """The connection has ended."""
        self._holding.close()

    def _agree(self, mechanism: str) -> Fields:
        is_known = mechanism in MECHANISMS
        self._mechanism = mechanism if is_known else None
        code = ErrorCode.none if is_known else ErrorCode.unsupported_sasl_mechanism
        return {"error_code": code, "mechanisms": list(MECHANISMS)}

    async def _authenticate(self, sent: bytes) -> Fields:
        if self._mechanism is None:
            return _refused(ErrorCode.illegal_sasl_state, "send SaslHandshake first")
        try:
            token = _token_of(self._mechanism, sent)
            await self._callers.verify(token)
            self._hold(token)
        except UnauthenticatedError as error:
            return _refused(ErrorCode.sasl_authentication_failed, error.message)
        except SbpError as error:
            return _refused(ErrorCode.sasl_authentication_failed, str(error))
        return {"error_code": ErrorCode.none, "auth_bytes": b"", "session_lifetime": _SESSION_MS}

    def _hold(self, token: bytes | None) -> None:
        self._holding.close()
        self._client = self._callers.client_of(token)
        self._holding.enter_context(self._callers.holding(self._client))


def _token_of(mechanism: str, sent: bytes) -> bytes:
    """Return the token that a client sent. Raises UnauthenticatedError."""
    token = b""
    if mechanism == _PLAIN:
        parts = sent.split(b"\0")
        token = parts[-1] if len(parts) == _PARTS else b""
    else:
        match = _BEARER.fullmatch(sent)
        token = match[1] if match else b""
    if not is_token(token) or not token:
        raise UnauthenticatedError.of(
            "the client sent no token: send it as the password of PLAIN, or by OAUTHBEARER"
        )
    return token


def _refused(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "auth_bytes": b""}


async def unreachable(call: Call) -> Fields:
    """Stand for the answer to a request that a connection answers itself."""
    raise FrameError(f"API {call.request.api_key} is answered before")


APIS: Final = (Api(HANDSHAKE, 0, 1, unreachable), Api(AUTHENTICATE, 0, 2, unreachable))
