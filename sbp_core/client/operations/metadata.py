"""Operations on streams: describe, list, create and delete them, find their record size limits.

stream_changes.py updates, trims and seals streams; range_placement.py finds their ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.client.operations.calls import (
    Attempts,
    Context,
    ask,
    ask_for_each,
    decode_reply,
    unanswered,
)
from sbp_core.client.operations.open_calls import Call, Reply, gather, pause
from sbp_core.client.operations.range_placement import (
    by_server,
    check_errors,
    chunks,
    cut_by_weight,
    locate,
    missing,
    refresh,
)
from sbp_core.client.types import StreamInfo, StreamSpec, check_types
from sbp_core.errors import (
    ConfigurationError,
    InvalidRequestError,
    NotFoundError,
    Outcome,
    SbpError,
    StatusCode,
    UnsupportedError,
)
from sbp_core.properties import checked_properties
from sbp_core.session.negotiation import RECORD_BYTES_OFFER, FeatureName, settle
from sbp_core.wire.headers import (
    ClientRole,
    CreateStreamsRequest,
    CreateStreamsResponse,
    DeleteStreamsRequest,
    DeleteStreamsResponse,
    DescribeStreamsRequest,
    DescribeStreamsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Stream,
    StreamProperty,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.STREAM_NAME_LENGTH_MAX}}}")
_DESCRIBED_PROPERTIES_MAX: Final = 500
"""Streams whose properties are asked for at a time. A stream has some 80 KiB of properties."""
REPLICA_COUNT_MAX: Final = 127
"""An int8 on the wire."""


async def describe_streams(context: Context, refs: Sequence[int | str]) -> list[StreamInfo]:
    """Return the metadata of streams given by id (int) or name (str), in the given order.

    Raises NotFoundError naming all missing streams.
    """
    # SPEC "DESCRIBE_STREAMS"
    found = await _find(context, refs)
    absent = [ref for ref in dict.fromkeys(refs) if ref not in found]
    if absent:
        raise missing([f"stream {ref!r}" for ref in absent])
    return [found[ref] for ref in refs]


async def find_streams(context: Context, refs: Sequence[int | str]) -> list[StreamInfo]:
    """Return the metadata of streams, given by id or name, in any order, without missing ones."""
    # SPEC "DESCRIBE_STREAMS"
    found = await _find(context, refs)
    return list({info.stream_id: info for info in found.values()}.values())


async def _find(context: Context, refs: Sequence[int | str]) -> dict[int | str, StreamInfo]:
    """Return the existing streams by id and by name."""
    found: dict[int | str, StreamInfo] = {}
    for chunk in chunks(list(dict.fromkeys(refs))):
        header = DescribeStreamsRequest(
            timeout_ms=context.timeout_ms,
            stream_ids=tuple(ref for ref in chunk if not isinstance(ref, str)),
            names=tuple(ref for ref in chunk if isinstance(ref, str)),
        )
        for info in await _describe(context, header):
            found[info.stream_id] = info
            if info.name is not None:
                found[info.name] = info
    return found


async def describe_properties(
    context: Context, stream_ids: Sequence[int]
) -> dict[int, dict[str, str]]:
    """Return the properties of streams, by id and key. Raises NotFoundError."""
    # SPEC "DESCRIBE_STREAMS"
    found: dict[int, dict[str, str]] = {}
    for chunk in chunks(list(dict.fromkeys(stream_ids)), _DESCRIBED_PROPERTIES_MAX):
        header = DescribeStreamsRequest(
            context.timeout_ms, stream_ids=tuple(chunk), with_properties=True
        )
        answers = await ask(context, Opcode.DESCRIBE_STREAMS, header, DescribeStreamsResponse)
        for result in (each for answer in answers for each in answer.describe_responses):
            error = maybe_error(result.status)
            if error is not None and not isinstance(error, NotFoundError):
                raise error
            if error is None and result.stream is not None:
                found[result.stream.stream_id] = {
                    each.key or "": each.value or "" for each in result.stream.properties
                }
    absent = [each for each in stream_ids if each not in found]
    if absent:
        raise missing([f"stream {each}" for each in absent])
    return found


def property_tables(properties: Mapping[str, str | None]) -> tuple[StreamProperty, ...]:
    """Return properties for the wire. Raises ConfigurationError for impossible ones."""
    try:
        return tuple(
            StreamProperty(*each) for each in checked_properties(properties.items()).items()
        )
    except InvalidRequestError as error:
        raise ConfigurationError(error.message) from error


def maybe_compare_and_set(streams: Iterable[Stream]) -> FeatureName | None:
    """Return the feature that a change of streams needs, or None."""
    is_needed = any(each.properties or each.expected_properties for each in streams)
    return FeatureName.COMPARE_AND_SET if is_needed else None


async def list_streams(context: Context) -> list[StreamInfo]:
    """Return all streams of the cluster, by id."""
    header = DescribeStreamsRequest(timeout_ms=context.timeout_ms, all_streams=True)
    return sorted((await _describe(context, header)), key=lambda info: info.stream_id)


async def create_streams(
    context: Context,
    specs: Sequence[StreamSpec],
    *,
    on_created: Callable[[StreamInfo], None] | None = None,
) -> list[StreamInfo]:
    """Create streams; return them in the order of `specs`.

    Waits while no range server can take a range. `on_created` is called with each new stream: some
    may be created although the call raises AlreadyExistsError or NoRangeServerError.
    """
    # SPEC "CREATE_STREAMS"
    for spec in specs:
        check_spec(spec)
    created: list[StreamInfo] = []
    for chunk in cut_by_weight(specs, lambda each: 1 + len(each.properties)):
        created += await _create(context, chunk, on_created or (lambda _: None))
    return created


async def _create(
    context: Context, specs: Sequence[StreamSpec], on_created: Callable[[StreamInfo], None]
) -> list[StreamInfo]:
    created: dict[int, StreamInfo] = {}
    attempts = Attempts(context, context.now_ms())
    while len(created) < len(specs):
        wanted = [index for index in range(len(specs)) if index not in created]
        header = CreateStreamsRequest(
            timeout_ms=context.timeout_ms,
            streams=tuple(
                Stream(
                    name=specs[index].name,
                    replica_nums=specs[index].replica_count,
                    retention_period_ms=specs[index].retention_period_ms,
                    retention_bytes=specs[index].retention_bytes,
                    ack_count=specs[index].ack_count,
                    properties=property_tables(specs[index].properties),
                )
                for index in wanted
            ),
        )
        results = await ask_for_each(
            context,
            Opcode.CREATE_STREAMS,
            header,
            CreateStreamsResponse,
            (len(wanted), "streams to create"),
            is_repeatable=False,
            feature=maybe_compare_and_set(header.streams),
        )
        failures: list[tuple[str, SbpError]] = []
        for index, result in zip(wanted, results, strict=True):
            what = f"stream {specs[index].name or '(unnamed)'!r}"
            error = maybe_error(result.status)
            if error is not None:
                failures.append((what, error))
            elif result.stream is None:
                raise unanswered(what)
            else:
                check_named(specs[index].name, result.stream)
                created[index] = stream_info(result.stream)
                on_created(created[index])
        if failures:
            attempts.on_failure()
            now_ms = context.now_ms()
            longest_ms = 0.0
            for what, failure in failures:
                wait_ms = attempts.maybe_wait_ms(
                    failure, f"creating {what}", None, now_ms, is_repeatable=False
                )
                if wait_ms is None:
                    raise attempts.explain(failure, f"creating {what}", None)
                longest_ms = max(longest_ms, wait_ms)
            await pause(context.open_calls, longest_ms)
    return [created[index] for index in range(len(specs))]


async def record_bytes_max(context: Context, stream_ids: Collection[int]) -> dict[int, int]:
    """Return how many bytes a record of each stream may have, by stream id.

    The limit is the setting record_bytes_max of the stream's range server, or the largest possible
    setting if the server does not answer. Raises NotFoundError naming all missing streams.
    """
    # SPEC "HEARTBEAT"
    check_errors(await locate(context, stream_ids))
    servers: dict[int, str] = {}
    for stream_id in stream_ids:
        piece = context.router.maybe_open_range(stream_id)
        if piece is not None and piece.servers:
            servers[stream_id] = piece.servers[0]
    asked = list(dict.fromkeys(servers.values()))
    timeout_ms = min(context.timeout_ms, limits.CONNECT_TIMEOUT_MS)
    header = HeartbeatRequest(client_role=ClientRole.CLIENT, features=(RECORD_BYTES_OFFER,))
    calls = [Call(each, Opcode.HEARTBEAT, header, timeout_ms) for each in asked]
    replies = await gather(context.open_calls, calls)
    accepted = dict(zip(asked, map(_record_bytes, replies), strict=True))
    return {
        each: accepted[servers[each]] if each in servers else limits.RECORD_BYTES_LARGEST
        for each in stream_ids
    }


def _record_bytes(reply: Reply) -> int:
    """Return the setting record_bytes_max of a server, the largest one without an answer."""
    try:
        answer = decode_reply(reply, HeartbeatResponse)[-1]
    except SbpError:
        return limits.RECORD_BYTES_LARGEST
    return settle((RECORD_BYTES_OFFER,), answer.features).sizes.record_bytes


async def delete_streams(context: Context, refs: Sequence[int | str]) -> None:
    """Delete streams given by id or name, all or none.

    A range server that is down learns of the deletion later, from the placement driver. Raises
    NotFoundError naming all missing streams.
    """
    # SPEC "DELETE_STREAMS"
    infos = await describe_streams(context, refs)
    stream_ids = list(dict.fromkeys(info.stream_id for info in infos))
    await refresh(context, stream_ids)
    hosted = by_server({each: context.router.maybe_ranges(each) or () for each in stream_ids})
    for chunk in chunks(stream_ids):
        results = await ask_for_each(
            context,
            Opcode.DELETE_STREAMS,
            _delete_header(context, chunk),
            DeleteStreamsResponse,
            (len(chunk), "streams to delete"),
            is_repeatable=False,
        )
        for result in results:
            error = maybe_error(result.status)
            if error is not None and not isinstance(error, NotFoundError):
                raise error
    for stream_id in stream_ids:
        context.router.forget(stream_id)
    await gather(
        context.open_calls,
        [
            Call(
                server,
                Opcode.DELETE_STREAMS,
                _delete_header(context, chunk),
                context.timeout_ms,
            )
            for server, chunk in hosted
        ],
    )


def check_spec(spec: StreamSpec) -> None:
    """Raise ConfigurationError if no stream can have these settings."""
    check_types(spec)
    if spec.name is not None and (not _NAME.fullmatch(spec.name) or spec.name in {".", ".."}):
        raise ConfigurationError(
            f"stream name {spec.name[:300]!r} is not allowed: write 1 to"
            f" {limits.STREAM_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - (but not . or ..)"
        )
    if not 1 <= spec.replica_count <= REPLICA_COUNT_MAX:
        raise ConfigurationError(
            f"replica_count {spec.replica_count} of stream {spec.name!r} is not in"
            f" 1..{REPLICA_COUNT_MAX}"
        )
    if not 0 <= spec.ack_count <= spec.replica_count:
        raise ConfigurationError(
            f"ack_count {spec.ack_count} of stream {spec.name!r} is not in 1..{spec.replica_count},"
            " the number of its replicas, or 0 for the majority"
        )
    if spec.retention_period_ms < 0:
        raise ConfigurationError(
            f"retention_period_ms {spec.retention_period_ms} of stream {spec.name!r} is negative;"
            " 0 keeps records for ever"
        )
    if spec.retention_bytes < 0:
        raise ConfigurationError(
            f"retention_bytes {spec.retention_bytes} of stream {spec.name!r} is negative;"
            " 0 is no limit"
        )


def check_named(wanted: str | None, stream: Stream) -> None:
    """Raise UnsupportedError if a server created a stream without the wanted name."""
    if wanted is not None and stream.name is None:
        error = UnsupportedError(
            StatusCode.UNSUPPORTED_OPERATION,
            f"the server knows no names: stream {stream.stream_id} exists, but not as {wanted!r};"
            " use its id",
        )
        error.outcome = Outcome.APPLIED
        raise error


def stream_info(stream: Stream) -> StreamInfo:
    """Return the caller's view of a stream of the wire."""
    return StreamInfo(
        stream_id=stream.stream_id,
        name=stream.name,
        replica_count=stream.replica_nums,
        retention_period_ms=stream.retention_period_ms,
        created_at_ms=stream.created_at_ms,
        retention_bytes=max(0, stream.retention_bytes),
        ack_count=stream.ack_count,
    )


async def _describe(context: Context, header: DescribeStreamsRequest) -> list[StreamInfo]:
    """Ask for streams; leave out missing ones, and raise any other error."""
    answers = await ask(context, Opcode.DESCRIBE_STREAMS, header, DescribeStreamsResponse)
    results = [result for answer in answers for result in answer.describe_responses]
    for result in results:
        error = maybe_error(result.status)
        if error is not None and not isinstance(error, NotFoundError):
            raise error
    return [
        stream_info(result.stream)
        for result in results
        if result.stream is not None and maybe_error(result.status) is None
    ]


def _delete_header(context: Context, stream_ids: Sequence[int]) -> DeleteStreamsRequest:
    return DeleteStreamsRequest(
        timeout_ms=context.timeout_ms,
        streams=tuple(Stream(stream_id=stream_id) for stream_id in stream_ids),
    )
