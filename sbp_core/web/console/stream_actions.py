"""Actions on streams: create, change, trim, delete."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.client import AsyncClient, StreamInfo, StreamSpec
from sbp_core.client.stream_position import PositionKind, find_offset, parse_position
from sbp_core.errors import PermissionDeniedError, RefusedError, StatusCode, UnsupportedError
from sbp_core.web.console.actions import Question, act, ask
from sbp_core.web.console.site import Site
from sbp_core.web.console.stream import find_reach, find_stream
from sbp_core.web.console.stream_actions_view import (
    StreamForm,
    check_is_new,
    creation_facts,
    deletion_facts,
    maybe_refusal,
    parse_count,
    trim_facts,
    update_facts,
)
from sbp_core.web.console.submissions import Done, check_typed

_SEEN: Final = "seen-"
"""Fields with what a stream had when the question was asked begin so."""


async def ask_creation(request: Request) -> Response:
    """Show the form of a new stream; with a name, what it will be."""
    site, query = Site.of(request), request.query_params
    client = await site.client(request)
    form = StreamForm.read(query, StreamForm())
    if "name" not in query:
        return _show_form(request, form, "Create a stream", "/streams")
    spec = form.spec()
    check_is_new(form.name, await client.find_streams([form.name]))
    missing = await client.explain_missing(spec.replica_count)
    refusal = await _maybe_refusal(client, spec)
    question = Question(
        title=f"Create stream {spec.name}?",
        facts=[refusal] if refusal else [*creation_facts(spec), *([missing] if missing else [])],
        button=None if refusal else "Create it",
        back="/streams",
        carried=form.fields(),
    )
    return ask(request, question)


async def create(request: Request) -> Response:
    """Create a stream."""
    site = Site.of(request)
    fields = await site.form(request)
    spec = StreamForm.read(fields, StreamForm()).spec()
    client = await site.client(request)

    async def action() -> Done:
        (info,) = await client.create_streams([spec])
        return Done(_path(info), (f"created {_titled(info)}",))

    return await act(request, fields, action)


async def ask_update(request: Request) -> Response:
    """Show the form with what a stream has; with changes, what they mean."""
    site, query = Site.of(request), request.query_params
    client = await site.client(request)
    info = await find_stream(client, request)
    form = StreamForm.read(query, StreamForm.of(info))
    if "retention" not in query:
        return _show_form(request, form, f"Change stream {info.label}", _path(info))
    change = form.update(info)
    if change.name is not None:
        check_is_new(change.name, await client.find_streams([change.name]))
    missing = await client.explain_missing(change.replica_count or 1)
    now = StreamForm.of(info).fields(prefix=_SEEN)
    question = Question(
        title=f"Change stream {_titled(info)}?",
        facts=[*update_facts(info, change), *([missing] if missing else [])],
        button="Change it",
        back=_path(info),
        carried=form.fields() | now,
    )
    return ask(request, question)


async def update(request: Request) -> Response:
    """Change a stream as the form says, unless it is no longer as the question showed it."""
    site = Site.of(request)
    fields = await site.form(request)
    client = await site.client(request)

    async def action() -> Done:
        info = await find_stream(client, request)
        now = StreamForm.of(info)
        if StreamForm.read(fields, now, prefix=_SEEN) != now:
            raise RefusedError(
                StatusCode.CONFLICT,
                f"nothing was changed: {_titled(info)} has changed since; look at it again",
            )
        change = StreamForm.read(fields, now).update(info)
        (changed,) = await client.update_streams([change])
        return Done(_path(changed), (f"changed {_titled(changed)}",))

    return await act(request, fields, action)


async def ask_trim(request: Request) -> Response:
    """Ask for the new first record; with one, show what that removes."""
    site, text = Site.of(request), request.query_params.get("position", "").strip()
    client = await site.client(request)
    info = await find_stream(client, request)
    at = await find_reach(client, info.stream_id)
    if not text:
        return site.page(
            *(request, "stream_trim.html", f"Trim stream {info.label}"),
            info=info,
            path=_path(info),
            at=at,
        )
    position, found = parse_position(text), None
    if position.kind is PositionKind.TIME:
        found = (await client.lookup_offsets({info.stream_id: position.number}))[info.stream_id]
    offset = find_offset(position, at, found)
    question = Question(
        title=f"Trim stream {_titled(info)}?",
        facts=trim_facts(at, offset),
        button="Trim it",
        back=_path(info),
        carried={"offset": str(offset)},
        typed=info.label if offset >= at.readable_end else None,
        is_destructive=True,
    )
    return ask(request, question)


async def trim(request: Request) -> Response:
    """Remove the records below an offset; the name has to be typed if these are all."""
    site = Site.of(request)
    fields = await site.form(request)
    offset = parse_count(fields.get("offset", ""))
    client = await site.client(request)

    async def action() -> Done:
        info = await find_stream(client, request)
        if offset >= (await find_reach(client, info.stream_id)).readable_end:
            check_typed(info.label, fields.get("typed", ""))
        first = (await client.trim_streams({info.stream_id: offset}))[info.stream_id]
        said = f"trimmed {_titled(info)}: its first record has offset {first.start_offset}"
        return Done(_path(info), (said,))

    return await act(request, fields, action)


async def ask_deletion(request: Request) -> Response:
    """Show what the deletion of a stream removes."""
    site = Site.of(request)
    client = await site.client(request)
    info = await find_stream(client, request)
    samples = await site.samples(request)
    lags = samples.lags[-1].records if samples.lags else {}
    groups = sorted(group for group, stream_id in lags if stream_id == info.stream_id)
    question = Question(
        title=f"Delete stream {_titled(info)}?",
        facts=deletion_facts(info, await find_reach(client, info.stream_id), groups),
        button="Delete it",
        back=_path(info),
        typed=info.label,
        is_destructive=True,
    )
    return ask(request, question)


async def delete(request: Request) -> Response:
    """Delete a stream, whose name was typed."""
    site = Site.of(request)
    fields = await site.form(request)
    client = await site.client(request)

    async def action() -> Done:
        info = await find_stream(client, request)
        check_typed(info.label, fields.get("typed", ""))
        await client.delete_streams([info.stream_id])
        return Done("/streams", (f"deleted {_titled(info)}",))

    return await act(request, fields, action)


async def _maybe_refusal(client: AsyncClient, spec: StreamSpec) -> str | None:
    """Return why a stream cannot be created now, as far as the caller may know."""
    try:
        cluster = await client.describe_cluster()
    except (PermissionDeniedError, UnsupportedError):
        return None
    return maybe_refusal(spec, cluster.range_servers)


def _show_form(request: Request, form: StreamForm, title: str, back: str) -> Response:
    return Site.of(request).page(
        *(request, "stream_form.html", title), form=form, path=request.url.path, back=back
    )


def _path(info: StreamInfo) -> str:
    return f"/streams/{info.stream_id}"


def _titled(info: StreamInfo) -> str:
    return f"{info.label} (id {info.stream_id})"


_CREATION: Final = "/streams/new"
_STREAM: Final = "/streams/{stream}"
ROUTES: Final = (
    Route(_CREATION, ask_creation, methods=["GET"]),
    Route(_CREATION, create, methods=["POST"]),
    Route(_STREAM + "/change", ask_update, methods=["GET"]),
    Route(_STREAM + "/change", update, methods=["POST"]),
    Route(_STREAM + "/trim", ask_trim, methods=["GET"]),
    Route(_STREAM + "/trim", trim, methods=["POST"]),
    Route(_STREAM + "/delete", ask_deletion, methods=["GET"]),
    Route(_STREAM + "/delete", delete, methods=["POST"]),
)
