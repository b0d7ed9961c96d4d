"""All that pages have in common: the client of the caller, the frame around a page, forms."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from sbp_core import limits
from sbp_core.client import AsyncClient, Connecting, RetryPolicy
from sbp_core.errors import InvalidRequestError, PermissionDeniedError
from sbp_core.operating.samples import Samples
from sbp_core.web.callers import Callers
from sbp_core.web.console import words
from sbp_core.web.console.sampling import Sampler
from sbp_core.web.console.submissions import Submissions
from sbp_core.web.origins import check_same_site
from sbp_core.web.sessions import COOKIE

FORM_BYTES_MAX: Final = 65_536
_CSRF: Final = "csrf"
_CALL_MS: Final = 10_000
"""How long a server may take for one answer; people do not wait longer for a page."""


@dataclass(frozen=True, slots=True)
class Place:
    """A page that all others lead to; `key` is pressed behind g."""

    path: str
    name: str
    key: str


PLACES: Final = (
    Place("/", "Overview", "o"),
    Place("/streams", "Streams", "s"),
    Place("/groups", "Groups", "g"),
    Place("/transactions", "Transactions", "t"),
    Place("/servers", "Servers", "n"),
)


def make_client(endpoint: str, connecting: Connecting) -> AsyncClient:
    """Return a client for pages, whose calls fail after seconds."""
    retry = RetryPolicy(budget_ms=limits.CONNECT_TIMEOUT_MS)
    return AsyncClient(endpoint, connecting=connecting, retry=retry, timeout_ms=_CALL_MS)


class Site:
    """The console of one cluster, which its handlers find by `Site.of`."""

    def __init__(self, callers: Callers, sampler: Sampler, endpoint: str) -> None:
        assert callers.sessions is not None, "browsers sign in"
        self.sessions = callers.sessions
        self.submissions = Submissions()
        self._callers = callers
        self._sampler = sampler
        self._endpoint = endpoint
        self._secret = secrets.token_bytes(32)
        self._templates = Environment(
            loader=PackageLoader("sbp_core.web.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(words.FILTERS)

    @staticmethod
    def of(request: Request) -> Site:
        """Return the site that a request was sent to."""
        site = request.app.state.site
        assert isinstance(site, Site)
        return site

    async def client(self, request: Request) -> AsyncClient:
        """Return the client that acts for the caller. Raises UnauthenticatedError without one."""
        return await self._callers.client(request)

    async def verify(self, token: bytes) -> str:
        """Return the subject of a token. Raises UnauthenticatedError if the cluster refuses it."""
        return await self._callers.verify(token)

    async def samples(self, request: Request) -> Samples:
        """Return what was sampled for the caller, and go on with it while somebody looks."""
        return self._sampler.look(await self.client(request))

    def page(
        self, request: Request, template: str, title: str, *, status: int = 200, **values: object
    ) -> Response:
        """Return a page: a template within the frame, with `values`."""
        path = request.url.path
        place = next((each.path for each in PLACES[1:] if path.startswith(each.path)), "/")
        shown: dict[str, Any] = {
            "title": title,
            "place": place,
            "places": PLACES,
            "endpoint": self._endpoint,
            "is_signed_in": self.sessions.maybe_token(request) is not None,
            "csrf": Markup('<input type="hidden" name="{}" value="{}">').format(
                _CSRF, self._csrf(request)
            ),
            "now_ms": time.time_ns() // 1_000_000,
            "query": dict(request.query_params),
            "notice": self.submissions.maybe_notice(request.query_params.get("done", "")),
            **values,
        }
        return HTMLResponse(self._templates.get_template(template).render(shown), status)

    async def form(self, request: Request) -> Mapping[str, str]:
        """Return the fields of a form of this site that is sent.

        Raises PermissionDeniedError if it may be of another site, InvalidRequestError if it is none
        or too long.
        """
        check_same_site(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise InvalidRequestError.of(f"a form is expected, not {kind!a}")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                raise InvalidRequestError.of(f"a form has {FORM_BYTES_MAX} bytes at most")
        try:
            pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=100)
        except ValueError as error:
            raise InvalidRequestError.of(f"the form cannot be read: {error}") from error
        fields = dict(pairs)
        expected = self._csrf(request)
        if not hmac.compare_digest(fields.pop(_CSRF, "").encode(), expected.encode()):
            raise PermissionDeniedError.of(
                "the form is of an earlier session: go back, reload the page, and send it again"
            )
        return fields

    def done(self, path: str) -> Response:
        """Return the answer to a form whose action is done: the page at `path` follows."""
        return RedirectResponse(path, status_code=303)

    def _csrf(self, request: Request) -> str:
        """Return what forms of a session have, and those of other sessions have not."""
        session = request.cookies.get(COOKIE, "")
        return hmac.new(self._secret, session.encode(), "sha256").hexdigest()
