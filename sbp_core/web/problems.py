"""Errors as answers of HTTP: problem details (RFC 9457), with a status that follows from the class.

A problem has `type`, `title`, `status` and `detail` as RFC 9457 has them, and further

    outcome    "not applied", "applied" or "unknown": whether the request may have had its effect
    retriable  whether the same request may succeed later
    code       the status code of the server of the cluster, if a server refused
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sbp_core import errors
from sbp_core.errors import Outcome, SbpError, StatusError

_LOG: Final = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1
"""When to retry, where the cluster does not say."""

STATUS_OF: Final[Mapping[type[SbpError], int]] = {
    SbpError: 500,
    errors.ConfigurationError: 400,  # of what the request asks for: settings are checked before
    errors.ProtocolError: 502,
    errors.SchemaError: 422,
    errors.TransportError: 503,
    errors.TlsError: 502,
    errors.ConnectionLostError: 502,  # it may have had its effect, and 503 invites to repeat it
    errors.DeadlineExceededError: 504,
    errors.StatusError: 502,
    errors.RefusedError: 409,
    errors.InvalidRequestError: 400,
    errors.UnsupportedError: 501,
    errors.UnauthenticatedError: 401,
    errors.PermissionDeniedError: 403,
    errors.NotFoundError: 404,
    errors.AlreadyExistsError: 409,
    errors.ConditionFailedError: 412,
    errors.RangeNotFoundError: 503,
    errors.RangeSealedError: 503,
    errors.OffsetOutOfRangeError: 416,
    errors.ThrottledError: 429,
    errors.NotLeaderError: 503,
    errors.RangeOpenError: 409,
    errors.NoRangeServerError: 503,
    errors.ShuttingDownError: 503,
    errors.DiskFullError: 507,
    errors.WritersNotThereError: 503,
    errors.RequestTimeoutError: 504,
    errors.SealUnansweredError: 504,
    errors.StoreUnavailableError: 503,
    errors.StorageError: 502,
}
"""By class. A class that is not listed has the status of its base class."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that says why the request was not done."""

    status: int
    name: str
    """The problem in one word, for programs: the end of its type."""
    detail: str
    outcome: Outcome = Outcome.NOT_APPLIED
    is_retriable: bool = False
    more: Mapping[str, object] = field(default_factory=dict)
    """Further members."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def members(self) -> dict[str, object]:
        """Return the object that the answer has."""
        return {
            "type": f"urn:sbp:problem:{self.name}",
            "title": self.name.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            "outcome": self.outcome.value,
            "retriable": self.is_retriable,
            **self.more,
        }

    def response(self) -> Response:
        """Return the answer."""
        body = json.dumps(self.members()) + "\n"
        return Response(body, self.status, self.headers, media_type=MEDIA_TYPE)


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def bad_request(detail: str) -> ProblemError:
    """Return the problem of a request that is wrong."""
    return ProblemError(Problem(400, "bad-request", detail))


def refusal(status: int, name: str, detail: str, **headers: str) -> ProblemError:
    """Return the problem of a request that had no effect. `Retry_After` says that it may succeed.

    Underscores in names of headers are dashes.
    """
    shown = {each.replace("_", "-"): value for each, value in headers.items()}
    is_retriable = "Retry-After" in shown
    problem = Problem(status, name, detail, is_retriable=is_retriable, headers=shown)
    return ProblemError(problem)


def status_of(error: SbpError) -> int:
    """Return the status of HTTP for an error."""
    return next(STATUS_OF[each] for each in type(error).__mro__ if each in STATUS_OF)


def problem_of(error: SbpError) -> Problem:
    """Return the problem that an error of the client is."""
    status = status_of(error)
    headers: dict[str, str] = {}
    more: dict[str, object] = {}
    if status in {429, 503, 507}:
        wait_ms = error.throttle_time_ms if isinstance(error, StatusError) else 0
        headers["Retry-After"] = str(max(RETRY_AFTER_SECONDS, math.ceil(wait_ms / 1000)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, StatusError):
        more["code"] = error.code
    name = _words(type(error).__name__.removesuffix("Error"))
    return Problem(
        *(status, name, str(error), error.outcome),
        is_retriable=error.retriable,
        more=more,
        headers=headers,
    )


def _words(name: str) -> str:
    """Return the name of a class in words: NotFound is not-found."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


async def _of_sbp(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, SbpError)
    return problem_of(error).response()


async def _of_problem(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, ProblemError)
    return error.problem.response()


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    detail = f"{request.method} {request.url.path}: {status.description or error.detail}"
    name = status.phrase.lower().replace(" ", "-")
    return Problem(status.value, name, detail, headers=error.headers or {}).response()


async def _of_fault(request: Request, error: Exception) -> Response:
    _LOG.error(
        "request failed method=%s path=%s: a fault of this program",
        *(request.method, request.url.path),
        exc_info=error,
    )
    detail = "a fault of this program: its log has the trace"
    return Problem(500, "internal", detail, Outcome.UNKNOWN).response()


HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Coroutine[Any, Any, Response]]]] = {
    SbpError: _of_sbp,
    ProblemError: _of_problem,
    HTTPException: _of_http,
    Exception: _of_fault,
}
"""Handlers of errors for an application of Starlette."""
