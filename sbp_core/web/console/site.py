"""The frame of all pages: the client of the caller, templates, forms, and actions done once.

A module of pages has `ROUTES`: `get(path, show)` for a page, `post(path, act)` for an action. Both
get a `Visit`. An action has a page that asks, a `Question`, and a POST that acts once.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from sbp_core import limits
from sbp_core.client import AsyncClient, Connecting, RetryPolicy
from sbp_core.errors import ConfigurationError, InvalidRequestError, PermissionDeniedError
from sbp_core.operating.samples import Samples
from sbp_core.web.browsers import COOKIE, check_same_site
from sbp_core.web.callers import Callers
from sbp_core.web.console import charts, words
from sbp_core.web.console.histories import Sampler
from sbp_core.web.console.sorting import link_to
from sbp_core.web.console.tables import Tables

KEPT_MAX: Final = 1_000
"""Actions that are remembered. A further action replaces the oldest action that is over."""
_KEY_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class Done:
    """An action that was done: the page that follows, and the lines that the page says about it."""

    path: str
    notice: tuple[str, ...]


class Submissions:
    """The actions of this console's forms. Each form has a key of its own, from `new_key`."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[Done]] = OrderedDict()

    @staticmethod
    def new_key() -> str:
        """Return a key that nobody can guess."""
        return secrets.token_hex(_KEY_LENGTH // 2)

    async def once(self, key: str, act: Callable[[], Awaitable[Done]]) -> Done:
        """Return the outcome of the action of a form. An action runs once for each form.

        An action that failed may be tried again with the same form. The action goes on if the
        caller leaves. Raises what the action raises, InvalidRequestError without a key.
        """
        if len(key) != _KEY_LENGTH:
            raise InvalidRequestError.of("the form has no key: go back, and reload the page")
        task = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(self._run(key, act))
            self._tasks[key] = task
            self._forget_old()
        return await asyncio.shield(task)

    def maybe_notice(self, key: str) -> tuple[str, ...]:
        """Return the lines about the action of a form; none if the action is not known."""
        task = self._tasks.get(key)
        is_done = task is not None and task.done() and not task.cancelled()
        if task is None or not is_done or task.exception() is not None:
            return ()
        return task.result().notice

    async def close(self) -> None:
        """Wait until the actions that were begun are over."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, key: str, act: Callable[[], Awaitable[Done]]) -> Done:
        try:
            return await act()
        except BaseException:
            del self._tasks[key]
            raise

    def _forget_old(self) -> None:
        over = (key for key, task in self._tasks.items() if task.done())
        if len(self._tasks) > KEPT_MAX:
            oldest = next(over, None)
            if oldest is not None:
                del self._tasks[oldest]


def check_typed(expected: str, typed: str) -> None:
    """Raise ConfigurationError unless the name that an action asks for was typed."""
    if typed.strip() != expected:
        raise ConfigurationError(f"nothing was done: type {expected} to confirm")


FORM_BYTES_MAX: Final = 65_536
_CSRF: Final = "csrf"
_CALL_MS: Final = 10_000
"""How long a server may take for one answer; people do not wait longer for a page."""
PAGES: Final = (
    ("/", "Overview", "o"),
    ("/streams", "Streams", "s"),
    ("/groups", "Groups", "g"),
    ("/transactions", "Transactions", "t"),
    ("/servers", "Servers", "n"),
)
"""The pages that all others lead to: path, name, and the key that is pressed behind g."""


def make_client(endpoint: str, connecting: Connecting) -> AsyncClient:
    """Return a client for pages, whose calls fail after seconds."""
    retry = RetryPolicy(budget_ms=limits.CONNECT_TIMEOUT_MS)
    return AsyncClient(endpoint, connecting=connecting, retry=retry, timeout_ms=_CALL_MS)


class Site:
    """The console of one cluster, which its handlers find by `Site.of`."""

    def __init__(
        self, callers: Callers, sampler: Sampler, endpoint: str, tables: Tables | None = None
    ) -> None:
        assert callers.sessions is not None, "browsers sign in"
        self.sessions = callers.sessions
        self.callers = callers
        self.sampler = sampler
        self.submissions = Submissions()
        self.tables = tables or Tables()
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
        self._templates.globals.update(
            chart_spans=(*charts.SPANS,), spark_size=(charts.SPARK_WIDTH, charts.SPARK_HEIGHT)
        )

    @staticmethod
    def of(request: Request) -> Site:
        """Return the site that a request was sent to."""
        site = request.app.state.site
        assert isinstance(site, Site)
        return site

    def page(
        self, request: Request, template: str, title: str, *, status: int = 200, **values: object
    ) -> Response:
        """Return a page: a template within the frame, with `values`."""
        path, query = request.url.path, request.query_params
        shown: dict[str, Any] = {
            "title": title,
            "path": path,
            "place": next((each for each, *_ in PAGES[1:] if path.startswith(each)), path),
            "places": PAGES,
            "endpoint": self._endpoint,
            "is_signed_in": self.sessions.maybe_token(request) is not None,
            "csrf": Markup('<input type="hidden" name="{}" value="{}">').format(
                _CSRF, self._csrf(request)
            ),
            "now_ms": time.time_ns() // 1_000_000,
            "query": dict(query),
            "notice": self.submissions.maybe_notice(query.get("done", "")),
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

    def _csrf(self, request: Request) -> str:
        """Return the secret in the forms of a session, which no other session has."""
        session = request.cookies.get(COOKIE, "")
        return hmac.new(self._secret, session.encode(), "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The content of the page before an action.

    `facts` are the effects, a sentence each; `button` is the verb, None if nothing can be done.
    `carried` are the values that the POST gets back; it goes to the path of the question. `typed`
    is a name to be typed, if there is one. Cancel leads to `back`. An action that
    `is_destructive` cannot be undone.
    """

    title: str
    facts: Sequence[str]
    button: str | None
    back: str
    carried: Mapping[str, str] = field(default_factory=dict)
    typed: str | None = None
    is_destructive: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form whose next page is a preview."""

    name: str
    label: str
    value: str = ""
    is_required: bool = True
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a page, and the client that acts for the caller."""

    request: Request
    client: AsyncClient

    @classmethod
    async def of(cls, request: Request) -> Visit:
        """Return the visit. Raises UnauthenticatedError if the caller has to sign in."""
        return cls(request, await Site.of(request).callers.client(request))

    @property
    def query(self) -> Mapping[str, str]:
        """The query of the address."""
        return self.request.query_params

    @property
    def path(self) -> str:
        """The path of the address."""
        return self.request.url.path

    def named(self, name: str) -> Any:
        """Return a part of the path, by its name in the route."""
        return self.request.path_params[name]

    def samples(self) -> Samples:
        """Return what was sampled for the caller, and go on with it."""
        site, request = Site.of(self.request), self.request
        if site.callers.maybe_token(request) is None:
            return site.sampler.look(self.client)
        return site.sampler.look(self.client, site.sessions.watch(request))

    def page(self, template: str, title: str, *, status: int = 200, **values: object) -> Response:
        """Return a page: a template within the frame, with `values`."""
        return Site.of(self.request).page(self.request, template, title, status=status, **values)

    def form(self, title: str, fields: Sequence[Field], back: str, note: str = "") -> Response:
        """Return the page of a form, which leads to a preview at the same path."""
        return self.page("form.html", title, fields=fields, back=back, note=note)

    def ask(self, question: Question, template: str = "ask.html", **values: Any) -> Response:
        """Return the page of a question; a template that extends ask.html may show more of it."""
        key = Submissions.new_key()
        return self.page(template, question.title, question=question, key=key, **values)


def get(path: str, show: Callable[[Visit], Awaitable[Response]]) -> Route:
    """Return the route of a page."""

    async def answer(request: Request) -> Response:
        return await show(await Visit.of(request))

    return Route(path, answer, methods=["GET"])


def post(path: str, act: Callable[[Visit, Mapping[str, str]], Awaitable[Done]]) -> Route:
    """Return the route of an action, which is done once for each form; a page follows.

    The cluster decides whether the caller may do it: its refusal is shown as it is.
    """

    async def answer(request: Request) -> Response:
        site = Site.of(request)
        fields = await site.form(request)
        visit, key = await Visit.of(request), fields.get("key", "")
        done = await site.submissions.once(key, lambda: act(visit, fields))
        return RedirectResponse(link_to(done.path, {"done": key}), status_code=303)

    return Route(path, answer, methods=["POST"])
