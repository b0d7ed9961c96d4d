"""Actions of the pages: a question that says what will happen, then one POST, which acts once.

The cluster decides whether the caller may do it: its refusal is shown as it is, as of other pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sbp_core.web.console.site import Site
from sbp_core.web.console.submissions import Done, Submissions
from sbp_core.web.console.tables import link_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The content of the page before an action.

    `facts` are what will happen, a sentence each; `button` is the verb, None if nothing can be
    done. `carried` are the values that the POST gets back; it goes to the path of the question.
    `typed` is a name to be typed, if there is one. Cancel leads to `back`. What `is_destructive`
    cannot be undone.
    """

    title: str
    facts: Sequence[str]
    button: str | None
    back: str
    carried: Mapping[str, str] = field(default_factory=dict)
    typed: str | None = None
    is_destructive: bool = False


def ask(
    request: Request, question: Question, template: str = "ask.html", **values: Any
) -> Response:
    """Return the page of a question; a template that extends ask.html may show more of it."""
    return Site.of(request).page(
        *(request, template, question.title),
        question=question,
        path=request.url.path,
        key=Submissions.new_key(),
        **values,
    )


async def act(
    request: Request, fields: Mapping[str, str], action: Callable[[], Awaitable[Done]]
) -> Response:
    """Do what a form asks for, once, and return the way to the page that follows.

    Raises what the action raises.
    """
    site, key = Site.of(request), fields.get("key", "")
    done = await site.submissions.once(key, action)
    return site.done(link_to(done.path, {"done": key}))
