"""All operations of the API, with what each accepts and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sbp_core import limits
from sbp_core.web.records.appending import KEY_HEADER, KEY_LENGTH_MAX, REPLAY_HEADER, Appending
from sbp_core.web.records.contents import ARROW, BYTES, NDJSON, TEXT
from sbp_core.web.records.declaring import COUNT, JSON, Answer, Operation, Parameter, Place, Schema
from sbp_core.web.records.declaring import TEXT as TEXT_SCHEMA
from sbp_core.web.records.reading import (
    FIRST_HEADER,
    LAST_EVENT_HEADER,
    NEXT_HEADER,
    WAIT_MS_MAX,
    Reading,
)
from sbp_core.web.records.streams import CursorChange, StreamChange, Streams
from sbp_core.web.records.tailing import EVENTS

_NAME: Final[Schema] = {
    "type": "string",
    "pattern": f"^[A-Za-z0-9._-]{{1,{limits.STREAM_NAME_LENGTH_MAX}}}$",
}
_STREAM: Final = Parameter("stream", Place.PATH, "Name of the stream, or its id.", _NAME)
_GROUP: Final = Parameter("group", Place.PATH, "Name of the consumer group.", _NAME)
_POSITION_DOC: Final = (
    "earliest, latest, an offset, -N for N records before the tail, a time such as"
    " 2025-01-31T09:30 (UTC), or one before now such as -10m: the first record that was"
    " appended then or later."
)
_BINARY: Final[Schema] = {"type": "string", "format": "binary"}


def _object(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members)}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT_OR_BYTES: Final[Schema] = {
    "anyOf": [TEXT_SCHEMA, _object(base64=TEXT_SCHEMA), {"type": "null"}]
}
_LINE: Final[Schema] = {
    "description": "One object per line. Plain stream: the members below, all optional. Stream with"
    " a schema: a member for each column, or these in `columns`.",
    "type": "object",
    "properties": {
        "value": _TEXT_OR_BYTES,
        "key": _TEXT_OR_BYTES,
        "headers": _maybe({"type": "array", "items": {"type": "array"}}),
        "timestamp": _maybe(
            {
                "type": "string",
                "description": "A time such as 2025-01-31T09:30:00Z, which is UTC without a zone; a"
                " number is refused.",
            }
        ),
        "columns": {"type": "object"},
        "stream": TEXT_SCHEMA,
        "offset": COUNT,
    },
}
_LINE_READ: Final[Schema] = {
    **_LINE,
    "properties": {
        **_LINE["properties"],
        "timestamp": {
            "type": ["string", "integer", "null"],
            "description": "ISO 8601; microseconds since 1970 for a time that no calendar has.",
        },
    },
}
_APPENDED: Final = _object(
    stream=TEXT_SCHEMA, first_offset=COUNT, next_offset=COUNT, record_count=COUNT
)
_INFO: Final[dict[str, Schema]] = {
    "stream": TEXT_SCHEMA,
    "stream_id": COUNT,
    "replica_count": COUNT,
    "ack_count": COUNT,
    "retention_period_ms": COUNT,
    "retention_bytes": COUNT,
    "created_at_ms": {"type": "integer"},
}
_STREAM_ANSWER: Final = _object(
    **_INFO,
    first_offset=COUNT,
    next_offset=COUNT,
    schema_version=_maybe(COUNT),
    columns=_maybe({"type": "array", "items": TEXT_SCHEMA}),
    properties={"type": "object", "additionalProperties": TEXT_SCHEMA},
)
_CURSORS_ANSWER: Final = _object(
    group=TEXT_SCHEMA,
    cursors={
        "type": "array",
        "items": _object(
            stream=TEXT_SCHEMA, next_offset=COUNT, committed_at_ms={"type": "integer"}
        ),
    },
)


def operations(appending: Appending, reading: Reading, streams: Streams) -> Sequence[Operation]:
    """Return the operations."""
    return (*_of_records(appending, reading), *_of_streams(streams), *_of_groups(streams))


def _of_records(appending: Appending, reading: Reading) -> tuple[Operation, ...]:
    path = "/v1/streams/{stream}/records"
    key = Parameter(
        *(KEY_HEADER, Place.HEADER),
        "A retry with the same key, and the same body, appends nothing and gets the same answer.",
        {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH_MAX},
    )
    last_event = Parameter(
        LAST_EVENT_HEADER, Place.HEADER, f"Go on behind the event with this id ({EVENTS}).", COUNT
    )
    wait_schema = {**COUNT, "maximum": WAIT_MS_MAX}
    return (
        Operation(
            *("appendRecords", "POST", path),
            "Append records: all of them, or none. Answers when they are durable.",
            appending.append,
            parameters=(_STREAM, key),
            contents={NDJSON: _LINE, ARROW: _BINARY, TEXT: TEXT_SCHEMA, BYTES: _BINARY},
            answers={
                200: Answer(
                    "The records are durable, at these offsets.",
                    {JSON: _APPENDED},
                    {REPLAY_HEADER: "true if an earlier request with the key appended them"},
                )
            },
            problems=(413, 415, 422),
        ),
        Operation(
            *("readRecords", "GET", path),
            "Read records up to the tail of the stream, or follow it.",
            reading.read,
            parameters=(
                _STREAM,
                Parameter("from", Place.QUERY, f"The first record: {_POSITION_DOC}"),
                Parameter("to", Place.QUERY, f"The end, exclusive: {_POSITION_DOC}"),
                Parameter("max", Place.QUERY, "How many records at most.", COUNT),
                Parameter(
                    *("wait_ms", Place.QUERY),
                    "How long to wait for a record, if there is none; milliseconds.",
                    wait_schema,
                ),
                last_event,
            ),
            answers={
                200: Answer(
                    "The records; an answer that was cut off has no end.",
                    {NDJSON: _LINE_READ, ARROW: _BINARY, EVENTS: TEXT_SCHEMA},
                    {
                        FIRST_HEADER: "offset of the first record",
                        NEXT_HEADER: "where to read on, once the whole answer has arrived",
                    },
                )
            },
            problems=(406, 416),
        ),
    )


def _of_streams(streams: Streams) -> tuple[Operation, ...]:
    one = "/v1/streams/{stream}"
    described = {JSON: _STREAM_ANSWER}
    listed = _object(streams={"type": "array", "items": _object(**_INFO)})
    return (
        Operation(
            *("listStreams", "GET", "/v1/streams"),
            "List streams.",
            streams.list_all,
            answers={200: Answer("The streams.", {JSON: listed})},
        ),
        Operation(
            *("describeStream", "GET", one),
            "Describe a stream: its settings, its bounds, its columns, its properties.",
            streams.describe,
            parameters=(_STREAM,),
            answers={200: Answer("The stream.", described)},
        ),
        Operation(
            *("putStream", "PUT", one),
            "Create a stream, or change its settings.",
            streams.change,
            parameters=(_STREAM,),
            contents={JSON: json_schema(StreamChange)},
            answers={
                200: Answer("The stream as it is now.", described),
                201: Answer("The stream that was created.", described),
            },
            problems=(409, 412, 413, 415, 422),
        ),
        Operation(
            *("deleteStream", "DELETE", one),
            "Delete a stream and its records.",
            streams.delete,
            parameters=(_STREAM,),
            answers={204: Answer("The stream is deleted.")},
        ),
    )


def _of_groups(streams: Streams) -> tuple[Operation, ...]:
    path = "/v1/groups/{group}/cursors"
    answers = {200: Answer("All cursors of the group.", {JSON: _CURSORS_ANSWER})}
    return (
        Operation(
            *("readCursors", "GET", path),
            "Read where a consumer group goes on, in each stream.",
            streams.cursors,
            parameters=(_GROUP,),
            answers=answers,
        ),
        Operation(
            *("setCursors", "PUT", path),
            "Set where a consumer group goes on, durably; cursors that are not named stay.",
            streams.set_cursors,
            parameters=(_GROUP,),
            contents={JSON: json_schema(CursorChange)},
            answers=answers,
            problems=(413, 415, 422),
        ),
    )


def json_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a body, with nothing outside of it."""
    (found,), components = msgspec.json.schema_components([kind])
    inlined: dict[str, Any] = _inlined(found, components)
    return inlined


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
    return {name: _inlined(each, components) for name, each in schema.items()}
