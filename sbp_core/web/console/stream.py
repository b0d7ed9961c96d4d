"""One stream: its facts and ranges, its schema; changing, trimming and deleting it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from sbp_core.client import AsyncClient, Reach, SchemaVersion, StreamInfo, StreamUpdate
from sbp_core.errors import ConfigurationError, RefusedError, StatusCode
from sbp_core.lake import TABLE_PROPERTY
from sbp_core.operating.stream_position import PositionKind, find_offset, parse_position
from sbp_core.quantities import is_offset, show_retention
from sbp_core.records import Change, compare_schemas, field_text
from sbp_core.records.stream_schema import type_text
from sbp_core.web.console import sorting
from sbp_core.web.console.charts import SPANS, Series, draw, draw_ranges, end_of, span_of
from sbp_core.web.console.site import Done, Field, Question, Site, Visit, check_typed, get, post
from sbp_core.web.console.streams import StreamForm, check_is_new, parse_count, titled
from sbp_core.web.console.words import count_text, counted
from sbp_core.wording import listed

REACH_MS: Final = 1_500
"""How long range servers that do not answer are waited for."""
_SEEN: Final = "seen-"
"""Fields with what a stream had when the question was asked begin so."""
_STYLES: Final = {Change.ADDED: "good", Change.WIDENED: "warn", Change.RELAXED: "warn"}


async def show(visit: Visit) -> Response:
    """Show the facts and the ranges of a stream."""
    client, samples = visit.client, visit.samples()
    info = await find_stream(visit)
    stream_id = info.stream_id
    at = await find_reach(client, stream_id)
    ranges = (await client.list_ranges([stream_id]))[stream_id]
    sizes = await client.stored_bytes([stream_id], timeout_ms=REACH_MS)
    lags = samples.lags[-1].records if samples.lags else {}
    readers = [(group, lag) for (group, read_id), lag in lags.items() if read_id == stream_id]
    rates = [Series(info.label, samples.rates_over_time([stream_id])[stream_id])]
    span = span_of(visit.query)
    properties = (await client.describe_properties([stream_id]))[stream_id]
    table, tables = properties.get(TABLE_PROPERTY), Site.of(visit.request).tables
    return visit.page(
        *("stream.html", info.label),
        stream=info,
        at=at,
        size_bytes=sizes.get(stream_id),
        rate=samples.rates().get(stream_id),
        byte_rate=samples.byte_rates().get(stream_id),
        picture=draw_ranges(ranges, at),
        ranges=[(each, end_of(each, at)) for each in reversed(ranges)],
        faults={each.start_offset: each.error for each in at.unavailable},
        span=span,
        rates=draw("Records per second", rates, time.time_ns() / 1_000_000, "/s", SPANS[span]),
        readers=sorted(readers, key=lambda each: (-each[1], each[0])),
        properties=properties,
        table=table,
        landed=None if table is None else await tables.maybe_state(info, table),
    )


async def show_schema(visit: Visit) -> Response:
    """Show the versions of a stream's schema, and how two of them differ."""
    info = await find_stream(visit)
    versions = (await visit.client.describe_schemas([info.stream_id]))[info.stream_id]
    numbered = {each.version: each for each in versions}
    numbers = [sorting.parse_count(visit.query.get(each, "")) for each in ("before", "after")]
    before, after = (None if each is None else numbered.get(each) for each in numbers)
    history = [
        (version, compare_versions(earlier, version))
        for earlier, version in zip((None, *versions), versions, strict=False)
    ]
    newest = versions[-1].schema.arrow if versions else ()
    return visit.page(
        *("schema.html", f"Schema of {info.label}"),
        stream=info,
        history=history[::-1],
        columns=[(each.name, type_text(each.type), each.nullable) for each in newest],
        compared=None if after is None else (before, after, compare_versions(before, after)),
    )


def compare_versions(before: SchemaVersion | None, after: SchemaVersion) -> list[tuple[str, str]]:
    """Return the style and text of each difference; without an earlier version, all is new."""
    if before is None:
        return [("good", f"+ column {field_text(each)}") for each in after.schema.arrow]
    found = compare_schemas(before.schema, after.schema).differences
    return [(_STYLES.get(each.change, "bad"), str(each)) for each in found]


async def find_stream(visit: Visit) -> StreamInfo:
    """Return the stream that the path of a request names, by id or name. Raises NotFoundError."""
    text: str = visit.named("stream")
    (info,) = await visit.client.describe_streams([int(text) if is_offset(text) else text])
    return info


async def find_reach(client: AsyncClient, stream_id: int) -> Reach:
    """Return what can be read of a stream now, after REACH_MS at most."""
    found = await client.reach({stream_id: None}, timeout_ms=REACH_MS, spared={})
    return found[stream_id]


def _path(info: StreamInfo) -> str:
    return f"/streams/{info.stream_id}"


async def ask_update(visit: Visit) -> Response:
    """Show the form with what a stream has; with changes, what they mean."""
    client, info = visit.client, await find_stream(visit)
    form = StreamForm.read(visit.query, StreamForm.of(info))
    if "retention" not in visit.query:
        return visit.form(f"Change stream {info.label}", form.shown(), _path(info))
    change = form.update(info)
    if change.name is not None:
        check_is_new(change.name, await client.find_streams([change.name]))
    missing = await client.explain_missing(change.replica_count or 1)
    question = Question(
        title=f"Change stream {titled(info)}?",
        facts=[*update_facts(info, change), *([missing] if missing else [])],
        button="Change it",
        back=_path(info),
        carried=form.fields() | StreamForm.of(info).fields(prefix=_SEEN),
    )
    return visit.ask(question)


async def update(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Change a stream as the form says, unless it is no longer as the question showed it."""
    info = await find_stream(visit)
    now = StreamForm.of(info)
    if StreamForm.read(fields, now, prefix=_SEEN) != now:
        raise RefusedError(
            StatusCode.CONFLICT,
            f"nothing was changed: {titled(info)} has changed since; look at it again",
        )
    change = StreamForm.read(fields, now).update(info)
    (changed,) = await visit.client.update_streams([change])
    return Done(_path(changed), (f"changed {titled(changed)}",))


async def ask_trim(visit: Visit) -> Response:
    """Ask for the new first record; with one, show what that removes."""
    client, info = visit.client, await find_stream(visit)
    text = visit.query.get("position", "").strip()
    at = await find_reach(client, info.stream_id)
    if not text:
        more = ", exclusive" if at.next_offset is not None else ", and perhaps more"
        note = (
            f"Its records have offsets {count_text(at.start_offset)} to"
            f" {count_text(at.readable_end)}{more}. Name the first record to keep: an offset, -N"
            " for the last N records, latest for none, or a time (UTC) such as 2026-01-31T09:30."
        )
        field = Field("position", "First record to keep")
        return visit.form(f"Trim stream {info.label}", [field], _path(info), note)
    position, found = parse_position(text), None
    if position.kind is PositionKind.TIME:
        found = (await client.lookup_offsets({info.stream_id: position.number}))[info.stream_id]
    offset = find_offset(position, at, found)
    question = Question(
        title=f"Trim stream {titled(info)}?",
        facts=trim_facts(at, offset),
        button="Trim it",
        back=_path(info),
        carried={"offset": str(offset)},
        typed=info.label if offset >= at.readable_end else None,
        is_destructive=True,
    )
    return visit.ask(question)


async def trim(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Remove the records below an offset; the name has to be typed if these are all."""
    offset, info = parse_count(fields.get("offset", "")), await find_stream(visit)
    if offset >= (await find_reach(visit.client, info.stream_id)).readable_end:
        check_typed(info.label, fields.get("typed", ""))
    first = (await visit.client.trim_streams({info.stream_id: offset}))[info.stream_id]
    said = f"trimmed {titled(info)}: its first record has offset {first.start_offset}"
    return Done(_path(info), (said,))


async def ask_deletion(visit: Visit) -> Response:
    """Show what the deletion of a stream removes."""
    info, samples = await find_stream(visit), visit.samples()
    lags = samples.lags[-1].records if samples.lags else {}
    groups = sorted(group for group, stream_id in lags if stream_id == info.stream_id)
    question = Question(
        title=f"Delete stream {titled(info)}?",
        facts=deletion_facts(info, await find_reach(visit.client, info.stream_id), groups),
        button="Delete it",
        back=_path(info),
        typed=info.label,
        is_destructive=True,
    )
    return visit.ask(question)


async def delete(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Delete a stream, whose name was typed."""
    info = await find_stream(visit)
    check_typed(info.label, fields.get("typed", ""))
    await visit.client.delete_streams([info.stream_id])
    return Done("/streams", (f"deleted {titled(info)}",))


def update_facts(info: StreamInfo, change: StreamUpdate) -> list[str]:
    """Return what a change of a stream means, a sentence each."""
    facts = []
    if change.name is not None:
        facts.append(
            f"Its name is {change.name}: who uses the name {info.label} no longer finds it."
        )
    if change.replica_count is not None or change.ack_count is not None:
        count = change.replica_count or info.replica_count
        acks = f", acknowledged by {change.ack_count}" if change.ack_count else ""
        facts.append(
            f"Records appended from now on have {counted(count, 'replica')}{acks}: the stream goes"
            " on in a new range."
        )
    now = (info.retention_period_ms, info.retention_bytes)
    asked = (change.retention_period_ms, change.retention_bytes)
    if asked != (None, None):
        kept = [old if new is None else new for old, new in zip(now, asked, strict=True)]
        facts.append(
            f"Records are kept: {show_retention(*kept)}; now it is {show_retention(*now)}."
        )
        if any(new and (not old or new < old) for old, new in zip(now, kept, strict=True)):
            facts.append("Records that are beyond the new limit are removed permanently.")
    return facts


def trim_facts(at: Reach, offset: int) -> list[str]:
    """Return what a trim removes, a sentence each. Raises ConfigurationError if it is nothing."""
    if offset <= at.start_offset:
        raise ConfigurationError(
            "nothing to trim: the first record of the stream has offset"
            f" {count_text(at.start_offset)}"
        )
    removed = counted(offset - at.start_offset, "record")
    return [
        f"{removed} below offset {count_text(offset)} removed permanently.",
        "Readers below it get an error with the new start of the stream.",
    ]


def deletion_facts(info: StreamInfo, at: Reach, groups: Sequence[str]) -> list[str]:
    """Return what a deletion removes, a sentence each; `groups` have cursors in the stream."""
    held = counted(at.readable_end - at.start_offset, "record")
    least = "" if at.next_offset is not None else "at least "
    facts = [f"Stream {info.label} and its records, {least}{held}, removed permanently."]
    return [*facts, f"Cursors in it are lost: of {listed(groups)}."] if groups else facts


_STREAM: Final = "/streams/{stream}"
ROUTES: Final = (
    get(_STREAM, show),
    get(_STREAM + "/schema", show_schema),
    get(_STREAM + "/change", ask_update),
    post(_STREAM + "/change", update),
    get(_STREAM + "/trim", ask_trim),
    post(_STREAM + "/trim", trim),
    get(_STREAM + "/delete", ask_deletion),
    post(_STREAM + "/delete", delete),
)
