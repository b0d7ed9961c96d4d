"""Operations of the API, declared once: routes, checks of requests and the description follow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from enum import Enum
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sbp_core.errors import Outcome
from sbp_core.web.problems import Problem, ProblemError

Schema = Mapping[str, Any]
"""A JSON schema."""
Handler = Callable[[Request], Awaitable[Response]]

JSON: Final = "application/json"
TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


class Place(Enum):
    """The part of a request that has a parameter."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request."""

    name: str
    place: Place
    doc: str
    schema: Schema = field(default_factory=lambda: TEXT)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is no problem: its meaning, and by media type the schema of its content."""

    doc: str
    contents: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name of a header of its own: its meaning."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `name` identifies it in the description.

    `problems` are the statuses of problem details that are special to it.
    """

    name: str
    method: str
    path: str
    doc: str
    handler: Handler
    answers: Mapping[int, Answer]
    parameters: Sequence[Parameter] = ()
    contents: Mapping[str, Schema] = field(default_factory=dict)
    """By media type of the request: the schema of its content."""
    problems: Sequence[int] = ()

    async def handle(self, request: Request) -> Response:
        """Check the parameters of a request, and handle it. Raises ProblemError."""
        known = {each.name for each in self.parameters if each.place is Place.QUERY}
        given = [name for name, _ in request.query_params.multi_items()]
        unknown = sorted(set(given) - known)
        if unknown:
            raise bad_request(
                f"unknown parameter {unknown[0]!a}; there are {', '.join(sorted(known)) or 'none'}"
            )
        if len(set(given)) < len(given):
            raise bad_request("a parameter is given twice")
        return await self.handler(request)


def bad_request(detail: str) -> ProblemError:
    """Return the problem of a request that is wrong."""
    return ProblemError(Problem(400, "bad-request", detail))


def refusal(status: int, name: str, detail: str, **headers: str) -> ProblemError:
    """Return the problem of a request of which nothing was done; it may be repeated if it says so.

    Underscores in names of headers are dashes.
    """
    shown = {each.replace("_", "-"): value for each, value in headers.items()}
    is_retriable = "Retry-After" in shown
    return ProblemError(
        Problem(
            *(status, name, detail, Outcome.NOT_APPLIED), is_retriable=is_retriable, headers=shown
        )
    )


def json_answer(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer that is one line of JSON."""
    body = msgspec.json.encode(content) + b"\n"
    return Response(body, status, headers, media_type=JSON)


def parse_count(request: Request, name: str, default: int, high: int) -> int:
    """Return a parameter that is a whole number, `default` without it. Raises ProblemError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    if not is_number or int(text) > high:
        raise bad_request(f"{name}={text[:40]!a}: expected a whole number from 0 to {high}")
    return int(text)


def check_charset(request: Request) -> None:
    """Raise ProblemError, 415, for a body that is not in UTF-8."""
    header = Message()
    header["Content-Type"] = request.headers.get("content-type", "")
    charset = header.get_content_charset("utf-8")
    if charset != "utf-8":
        raise refusal(
            *(415, "unsupported-charset"),
            f"Content-Type: charset {charset[:40]!a}: expected utf-8, or none",
        )


def media_type(header: str) -> str:
    """Return a media type without its parameters."""
    return header.partition(";")[0].strip().lower()
