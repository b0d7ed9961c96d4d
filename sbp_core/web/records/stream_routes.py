"""Streams, and the cursors of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sbp_core import limits
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.types import NO_CURSOR, SchemaVersion, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.errors import NotFoundError
from sbp_core.records import StreamSchema, field_text
from sbp_core.records.column_text import parse_columns
from sbp_core.web.problems import bad_request, refusal
from sbp_core.web.records.record_answers import REACH_MS, find_reach, tail_of
from sbp_core.web.records.requests import (
    ApiRoute,
    Client,
    GroupName,
    Stream,
    StreamName,
    stream_ref,
)

_EXACT: Final = ConfigDict(extra="forbid", strict=True, frozen=True)
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Copies = Annotated[int, Field(ge=1, le=limits.REPLICAS_MAX)]


class StreamChange(BaseModel):
    """Settings of a stream. Settings that are left out stay, or have their defaults."""

    model_config = _EXACT

    replica_count: _Copies | None = None
    ack_count: _Copies | None = None
    retention_period_ms: _Count | None = None
    retention_bytes: _Count | None = None
    columns: list[str] | None = Field(
        default=None, description='Such as "id int64 not null". A schema that exists only grows.'
    )
    properties: dict[str, str | None] = Field(
        default={}, description="Properties to set, or to remove where null; others stay."
    )
    expected_properties: dict[str, str | None] = Field(
        default={},
        description="Nothing is changed unless the stream has these properties, and none where"
        " null.",
    )


class StreamSummary(BaseModel):
    """The settings of a stream."""

    stream: str
    stream_id: int
    replica_count: int
    ack_count: int
    retention_period_ms: int
    retention_bytes: int
    created_at_ms: int


class StreamDescription(StreamSummary):
    """A stream: its settings, its bounds, its columns, its properties."""

    properties: dict[str, str]
    first_offset: int
    next_offset: int
    schema_version: int | None
    columns: list[str] | None


class StreamList(BaseModel):
    """The streams that the caller sees."""

    streams: list[StreamSummary]


class CursorChange(BaseModel):
    """The offset that a group reads next in a stream; null forgets it."""

    model_config = _EXACT

    stream: str
    next_offset: _Count | None


class CursorChanges(BaseModel):
    """Cursors to set; others stay."""

    model_config = _EXACT

    cursors: list[CursorChange]


class Cursor(BaseModel):
    """The offset that a group reads next in a stream."""

    stream: str
    next_offset: int
    committed_at_ms: int


class Cursors(BaseModel):
    """All cursors of a group."""

    group: str
    cursors: list[Cursor]


class Line(JSONResponse):
    """One line of JSON."""

    def render(self, content: Any) -> bytes:
        """Return the line."""
        return super().render(content) + b"\n"


router: Final = APIRouter(route_class=ApiRoute, default_response_class=Line)


@router.get("/v1/streams", operation_id="listStreams")
async def list_streams(client: Client) -> StreamList:
    """List streams."""
    found = await client.list_streams()
    return StreamList(streams=[StreamSummary(**_summary(each)) for each in found])


@router.get("/v1/streams/{stream}", operation_id="describeStream")
async def describe_stream(client: Client, info: Stream) -> StreamDescription:
    """Describe a stream: its settings, its bounds, its columns, its properties."""
    return await _described(client, info)


@router.put(
    "/v1/streams/{stream}",
    operation_id="putStream",
    responses={201: {"model": StreamDescription, "description": "The stream was created."}},
)
async def put_stream(
    response: Response,
    client: Client,
    stream: StreamName,
    wanted: Annotated[StreamChange, Body()] = StreamChange(),  # noqa: B008
) -> StreamDescription:
    """Create a stream, or change its settings."""
    schema = None if wanted.columns is None else parse_columns(wanted.columns)
    name = stream_ref(stream)
    try:
        (info,) = await client.describe_streams([name])
    except NotFoundError:
        if isinstance(name, int) or wanted.expected_properties:
            raise
        (info,) = await client.create_streams([_spec(name, wanted)])
        response.status_code = 201
    else:
        if wanted.model_dump(exclude={"columns"}, exclude_defaults=True):
            (info,) = await client.update_streams([_update(info, wanted)])
    if schema is not None:
        await client.evolve_schema(info.stream_id, schema, may_change=True)
    return await _described(client, info)


@router.delete("/v1/streams/{stream}", operation_id="deleteStream", status_code=204)
async def delete_stream(client: Client, stream: StreamName) -> None:
    """Delete a stream and its records."""
    await client.delete_streams([stream_ref(stream)])


@router.get("/v1/groups/{group}/cursors", operation_id="readCursors")
async def read_cursors(client: Client, group: GroupName) -> Cursors:
    """Read where a consumer group goes on, in each stream."""
    found = await client.describe_cursors(group)
    infos = await client.find_streams([each.stream_id for each in found])
    labels = {each.stream_id: each.label for each in infos}
    cursors = [
        Cursor(
            stream=labels[each.stream_id],
            next_offset=each.next_offset,
            committed_at_ms=each.committed_at_ms,
        )
        for each in found
        if each.stream_id in labels
    ]
    return Cursors(group=group, cursors=cursors)


@router.put("/v1/groups/{group}/cursors", operation_id="setCursors")
async def set_cursors(client: Client, group: GroupName, wanted: CursorChanges) -> Cursors:
    """Set where a consumer group goes on, durably; cursors that are not named stay."""
    infos = await client.describe_streams([stream_ref(each.stream) for each in wanted.cursors])
    offsets = {
        info.stream_id: NO_CURSOR if each.next_offset is None else each.next_offset
        for info, each in zip(infos, wanted.cursors, strict=True)
    }
    if len(offsets) < len(wanted.cursors):
        raise bad_request("a stream is named twice")
    await _check_cursors(client, infos, offsets)
    await client.commit_cursors(group, offsets)
    return await read_cursors(client, group)


async def _check_cursors(
    client: AsyncClient, infos: Sequence[StreamInfo], offsets: Mapping[int, int]
) -> None:
    """Raise ProblemError, 422, for a cursor beyond the tail of its stream: records would be missed.

    A tail that is not known now refuses nothing, so that programs may keep their positions. A
    cursor before the first record is one whose records were trimmed.
    """
    positions = {each: offset for each, offset in offsets.items() if offset != NO_CURSOR}
    found = await client.reach(positions, timeout_ms=REACH_MS, spared={}) if positions else {}
    for info in infos:
        at = found.get(info.stream_id)
        if at is None or at.next_offset is None or offsets[info.stream_id] <= at.next_offset:
            continue
        raise refusal(
            *(422, "cursor-beyond-tail"),
            f"{info.label}: next_offset {offsets[info.stream_id]} is beyond its tail. It has"
            f" offsets {at.start_offset} to {at.next_offset}, exclusive: set one up to"
            f" {at.next_offset}, or null to forget the cursor; no cursor was changed",
        )


async def maybe_schema(client: AsyncClient, info: StreamInfo) -> StreamSchema | None:
    """Return the newest schema of a stream, None if it has none."""
    version = await _maybe_version(client, info)
    return None if version is None else version.schema


async def _maybe_version(client: AsyncClient, info: StreamInfo) -> SchemaVersion | None:
    versions = await client.describe_schemas([info.stream_id], newest_only=True)
    return next(iter(versions[info.stream_id][-1:]), None)


async def _described(client: AsyncClient, info: StreamInfo) -> StreamDescription:
    version = await _maybe_version(client, info)
    at = await find_reach(client, info.stream_id)
    properties = await client.describe_properties([info.stream_id])
    return StreamDescription(
        **_summary(info),
        properties=properties[info.stream_id],
        first_offset=at.start_offset,
        next_offset=tail_of(at),
        schema_version=None if version is None else version.version,
        columns=None if version is None else list(map(field_text, version.schema.arrow)),
    )


def _summary(info: StreamInfo) -> dict[str, Any]:
    names = StreamSummary.model_fields.keys() - {"stream"}
    return {"stream": info.label} | {name: getattr(info, name) for name in names}


def _spec(name: str, wanted: StreamChange) -> StreamSpec:
    return StreamSpec(
        name,
        replica_count=wanted.replica_count or 1,
        retention_period_ms=wanted.retention_period_ms or 0,
        retention_bytes=wanted.retention_bytes or 0,
        ack_count=wanted.ack_count or 0,
        properties={key: each for key, each in wanted.properties.items() if each is not None},
    )


def _update(info: StreamInfo, wanted: StreamChange) -> StreamUpdate:
    return StreamUpdate(
        info.stream_id,
        retention_period_ms=wanted.retention_period_ms,
        retention_bytes=wanted.retention_bytes,
        replica_count=wanted.replica_count,
        ack_count=wanted.ack_count,
        properties=wanted.properties,
        expected_properties=wanted.expected_properties,
    )
