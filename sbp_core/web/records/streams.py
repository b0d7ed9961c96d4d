"""Streams, and the cursors of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sbp_core import limits
from sbp_core.client.aio import AsyncClient
from sbp_core.client.types import NO_CURSOR, SchemaVersion, StreamInfo, StreamSpec, StreamUpdate
from sbp_core.errors import NotFoundError
from sbp_core.quantities import is_offset
from sbp_core.records import StreamSchema, field_text
from sbp_core.records.column_text import parse_columns
from sbp_core.records.json_lines import check_names
from sbp_core.records.json_parsing import maybe_whole
from sbp_core.web.callers import Callers
from sbp_core.web.records.bodies import Bodies
from sbp_core.web.records.declaring import bad_request, json_answer, refusal
from sbp_core.web.records.fetching import REACH_MS, find_reach, tail_of

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Copies = Annotated[int, msgspec.Meta(ge=1, le=limits.REPLICAS_MAX)]
_WHOLE_NUMBERS: Final = msgspec.json.Decoder(float_hook=lambda text: maybe_whole(float(text)))
"""Returns 2 for the number 2.0."""


class StreamChange(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Settings of a stream; those that are left out stay, or have their defaults."""

    replica_count: Copies | None = None
    ack_count: Copies | None = None
    retention_period_ms: Count | None = None
    retention_bytes: Count | None = None
    columns: list[str] | None = None
    """Columns of the records, such as "id int64 not null"; a schema that there is only grows."""
    properties: dict[str, str | None] = {}
    """Properties to set, or to remove where null; others stay."""
    expected_properties: dict[str, str | None] = {}
    """Nothing is changed unless the stream has these properties, and none where null."""


class Cursor(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The offset that a group reads next in a stream; null forgets it."""

    stream: str
    next_offset: Count | None


class CursorChange(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Cursors to set; others stay."""

    cursors: list[Cursor]


class Streams:
    """Lists, describes, changes and deletes streams; reads and sets cursors."""

    def __init__(self, callers: Callers, bodies: Bodies) -> None:
        self._callers = callers
        self._bodies = bodies

    async def list_all(self, request: Request) -> Response:
        """Answer with all streams."""
        client = await self._callers.client(request)
        return json_answer({"streams": list(map(_described, await client.list_streams()))})

    async def describe(self, request: Request) -> Response:
        """Answer with a stream, its bounds and its columns."""
        client = await self._callers.client(request)
        return await self._answer(client, await find_stream(client, request), 200)

    async def change(self, request: Request) -> Response:
        """Create a stream, or change it."""
        wanted = await self._body(request, StreamChange)
        schema = None if wanted.columns is None else parse_columns(wanted.columns)
        client = await self._callers.client(request)
        name = stream_ref(request.path_params["stream"])
        status = 200
        try:
            (info,) = await client.describe_streams([name])
        except NotFoundError:
            if isinstance(name, int) or wanted.expected_properties:
                raise
            (info,) = await client.create_streams([_spec(name, wanted)])
            status = 201
        else:
            if msgspec.structs.replace(wanted, columns=None) != StreamChange():
                (info,) = await client.update_streams([_update(info, wanted)])
        if schema is not None:
            await client.evolve_schema(info.stream_id, schema, may_change=True)
        return await self._answer(client, info, status)

    async def delete(self, request: Request) -> Response:
        """Delete a stream."""
        client = await self._callers.client(request)
        await client.delete_streams([stream_ref(request.path_params["stream"])])
        return Response(status_code=204)

    async def cursors(self, request: Request) -> Response:
        """Answer with the cursors of a group."""
        client = await self._callers.client(request)
        return await self._cursors(client, request.path_params["group"])

    async def set_cursors(self, request: Request) -> Response:
        """Set cursors of a group."""
        wanted = (await self._body(request, CursorChange)).cursors
        client = await self._callers.client(request)
        infos = await client.describe_streams([stream_ref(each.stream) for each in wanted])
        offsets = {
            info.stream_id: NO_CURSOR if each.next_offset is None else each.next_offset
            for info, each in zip(infos, wanted, strict=True)
        }
        if len(offsets) < len(wanted):
            raise bad_request("a stream is named twice")
        await _check_cursors(client, infos, offsets)
        await client.commit_cursors(request.path_params["group"], offsets)
        return await self._cursors(client, request.path_params["group"])

    async def _cursors(self, client: AsyncClient, group: str) -> Response:
        found = await client.describe_cursors(group)
        infos = await client.find_streams([each.stream_id for each in found])
        labels = {each.stream_id: each.label for each in infos}
        cursors = [
            {
                "stream": labels[each.stream_id],
                "next_offset": each.next_offset,
                "committed_at_ms": each.committed_at_ms,
            }
            for each in found
            if each.stream_id in labels
        ]
        return json_answer({"group": group, "cursors": cursors})

    async def _answer(self, client: AsyncClient, info: StreamInfo, status: int) -> Response:
        version = await _maybe_version(client, info)
        at = await find_reach(client, info.stream_id)
        properties = await client.describe_properties([info.stream_id])
        answer = _described(info) | {
            "properties": properties[info.stream_id],
            "first_offset": at.start_offset,
            "next_offset": tail_of(at),
            "schema_version": None if version is None else version.version,
            "columns": None
            if version is None
            else [field_text(field) for field in version.schema.arrow],
        }
        return json_answer(answer, status)

    async def _body(self, request: Request, kind: type[T]) -> T:
        """Return the object that a request has. Raises ProblemError."""
        async with self._bodies.received(request) as body:
            try:
                found = _WHOLE_NUMBERS.decode(body or b"{}")
                check_names(body or b"{}")
                return msgspec.convert(found, kind)
            except (ValueError, RecursionError) as error:
                raise refusal(422, "wrong-body", f"the body: {error}") from error


def stream_ref(text: str) -> int | str:
    """Return the id that a text of digits is; any other is the name of a stream."""
    return int(text) if is_offset(text) else text


async def find_stream(client: AsyncClient, request: Request) -> StreamInfo:
    """Return the stream of a request. Raises NotFoundError."""
    (info,) = await client.describe_streams([stream_ref(request.path_params["stream"])])
    return info


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


def _described(info: StreamInfo) -> dict[str, Any]:
    return {
        "stream": info.label,
        "stream_id": info.stream_id,
        "replica_count": info.replica_count,
        "ack_count": info.ack_count,
        "retention_period_ms": info.retention_period_ms,
        "retention_bytes": info.retention_bytes,
        "created_at_ms": info.created_at_ms,
    }


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
