"""Operations that look up where the ranges of streams are, and where the streams end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from sbp_core import limits
from sbp_core.client.operations.calls import Context, ask, unanswered
from sbp_core.client.operations.router import Router
from sbp_core.client.types import MetadataChanges, RangeInfo, StoreCommit
from sbp_core.errors import (
    InvalidRequestError,
    NoRangeServerError,
    NotFoundError,
    ProtocolError,
    SbpError,
    StatusCode,
    UnsupportedError,
)
from sbp_core.wire.headers import (
    ListRangesRequest,
    ListRangesResponse,
    RangeCriteria,
    Stream,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from sbp_core.wording import listed

T = TypeVar("T")


def chunks(values: Sequence[T], size: int = limits.STREAMS_PER_CALL) -> Iterator[Sequence[T]]:
    """Cut into pieces of at most `size`."""
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]


def cut_by_weight(
    items: Sequence[T], weigh: Callable[[T], int], weight_max: int = limits.RESULTS_PER_FRAME
) -> list[Sequence[T]]:
    """Cut into parts of `weight_max` at most. A heavier item has a part of its own."""
    parts: list[Sequence[T]] = []
    start = total = 0
    for at, item in enumerate(items):
        weight = weigh(item)
        if total + weight > weight_max and at > start:
            parts.append(items[start:at])
            start, total = at, 0
        total += weight
    return [*parts, items[start:]] if items else []


def stream_weight(stream: Stream | None) -> int:
    """Return the weight of a stream in results: 1, and 1 for each property (1.2 KiB)."""
    if stream is None:
        return 1
    return 1 + len(stream.properties) + len(stream.expected_properties)


def by_server(ranges: Mapping[int, Sequence[RangeInfo]]) -> list[tuple[str, Sequence[int]]]:
    """Return each server with the ids of the streams that it has ranges of.

    A server with more than STREAMS_PER_CALL streams comes several times.
    """
    hosted: dict[str, list[int]] = {}
    for stream_id, pieces in ranges.items():
        for server in dict.fromkeys(each for piece in pieces for each in piece.servers):
            hosted.setdefault(server, []).append(stream_id)
    return [(server, part) for server, whole in hosted.items() for part in chunks(whole)]


def range_info(piece: StreamRange) -> RangeInfo:
    """Return the caller's view of a range of the wire."""
    replicas = sorted(piece.servers, key=lambda replica: not replica.is_primary)
    return RangeInfo(
        stream_id=piece.stream_id,
        range_index=piece.range_index,
        start_offset=piece.start_offset,
        end_offset=piece.end_offset if piece.end_offset >= 0 else None,
        next_offset=piece.next_offset,
        servers=tuple(
            replica.server.advertise_addr
            for replica in replicas
            if replica.server is not None and replica.server.advertise_addr
        ),
    )


def checked_range(piece: StreamRange, server: str) -> RangeInfo:
    """Return a range as `server` described it. Raises ProtocolError for impossible offsets."""
    offsets = piece.start_offset, piece.end_offset, piece.next_offset
    if max(offsets) > limits.OFFSET_PLAUSIBLE_MAX or piece.start_offset < 0:
        raise ProtocolError(
            f"the server at {server} says that range {piece.range_index} of stream"
            f" {piece.stream_id} starts at offset {piece.start_offset}, ends at {piece.end_offset}"
            f" and goes on at {piece.next_offset}; offsets are from 0 to"
            f" {limits.OFFSET_PLAUSIBLE_MAX}: the server is broken, or no SBP server"
        )
    return range_info(piece)


def no_server(piece: RangeInfo) -> NoRangeServerError:
    """Return the error of a range that no server hosts."""
    return NoRangeServerError(
        StatusCode.PD_NO_AVAILABLE_RS,
        f"range {piece.range_index} of stream {piece.stream_id} has no server at the moment",
    )


async def refresh(
    context: Context, stream_ids: Iterable[int], as_of: int | None = None
) -> dict[int, SbpError]:
    """Look the streams up at the placement driver; return the error of each that failed.

    SPEC "LIST_RANGES". The router learns the other streams as of the revision of the answer, or
    `as_of` a revision that was reported before.
    """
    errors: dict[int, SbpError] = {}
    for chunk in chunks(list(dict.fromkeys(stream_ids))):
        header = ListRangesRequest(
            timeout_ms=context.timeout_ms,
            range_owners=tuple(RangeCriteria(stream_id=each) for each in chunk),
        )
        try:
            answers = await _list(context, header)
            listed = _ranges_by_stream(chunk, answers, context.drivers.endpoint)
        except SbpError as error:
            errors.update(dict.fromkeys(chunk, error))
            continue
        revision = answers[-1].revision if as_of is None else as_of
        for stream_id, found in listed.items():
            if isinstance(found, SbpError):
                context.router.forget(stream_id)
                errors[stream_id] = found
            else:
                context.router.learn(stream_id, found, revision)
    return errors


def _ranges_by_stream(
    stream_ids: Sequence[int], answers: Sequence[ListRangesResponse], server: str
) -> dict[int, list[RangeInfo] | SbpError]:
    """Return the ranges of each stream, perhaps from several results, or its error.

    Raises ProtocolError for too many ranges, or a range with impossible offsets.
    """
    count = sum(len(result.ranges) for answer in answers for result in answer.list_responses)
    if count > limits.LISTED_RANGES_MAX:
        raise ProtocolError(
            f"the server at {server} lists {count} ranges of {len(stream_ids)} streams; an answer"
            f" has {limits.LISTED_RANGES_MAX} at most"
        )
    found: dict[int, list[RangeInfo] | SbpError] = {
        each: unanswered(f"stream {each}") for each in stream_ids
    }
    for result in (entry for answer in answers for entry in answer.list_responses):
        stream_id = result.stream_id
        if stream_id not in found:
            continue
        failure = maybe_error(result.status)
        known = found[stream_id]
        if failure is not None:
            found[stream_id] = failure
            continue
        if not isinstance(known, list):
            known = found[stream_id] = []
        known += [checked_range(each, server) for each in result.ranges]
    return found


async def locate(context: Context, stream_ids: Iterable[int]) -> dict[int, SbpError]:
    """Look up the streams that the router does not know; return the errors by stream."""
    unknown = context.router.unknown(stream_ids)
    if not unknown:
        return {}
    return await refresh(context, unknown)


async def revalidate(context: Context, stream_ids: Sequence[int]) -> dict[int, SbpError]:
    """Let the router know the current ranges of streams; return the errors by stream.

    A placement driver that counts revisions is asked only for the streams that changed.
    """
    known = context.router.known(stream_ids)
    since = context.router.maybe_revision(known) if known else None
    if since is None:
        return await refresh(context, stream_ids)
    try:
        changes = await metadata_changes(context, since)
    except SbpError as error:
        return dict.fromkeys(stream_ids, error)
    if changes is None or changes.stream_ids is None:
        return await refresh(context, stream_ids)
    return await follow(context, stream_ids, since, changes)


async def follow(
    context: Context, stream_ids: Sequence[int], since: int, changes: MetadataChanges
) -> dict[int, SbpError]:
    """Look up the streams that changed since a revision or are unknown; return the errors."""
    assert changes.stream_ids is not None
    for stream_id in changes.stream_ids:
        context.router.forget(stream_id)
    context.router.confirm(stream_ids, since, changes.revision)
    return await refresh(context, context.router.unknown(stream_ids), changes.revision)


async def metadata_changes(context: Context, since: int = -1) -> MetadataChanges | None:
    """Return the revision of the metadata, and the streams that changed since an earlier one.

    The revision grows with every change of streams and ranges. None if the placement driver
    counts no revisions.
    """
    # SPEC "LIST_RANGES"
    header = ListRangesRequest(timeout_ms=context.timeout_ms, since_revision=since)
    try:
        answers = await _list(context, header)
    except (InvalidRequestError, UnsupportedError):  # the server wants a stream to be named
        return None
    return maybe_changes(answers[-1], since)


def maybe_changes(answer: ListRangesResponse, since: int) -> MetadataChanges | None:
    """Return the changes in an answer without ranges; None if it has no revision."""
    if answer.revision < 0:
        return None
    if answer.revision == since:
        return MetadataChanges(since, frozenset())
    changed = frozenset(answer.changed_streams) if answer.lists_changes else None
    return MetadataChanges(answer.revision, changed)


async def has_commit(context: Context, commit: StoreCommit) -> bool | None:
    """Return whether the placement driver's metadata include a commit; None if unknown.

    `commit` is an earlier `last_commit`. False means that the metadata were restored from an
    older backup since then, or that this is another cluster. Offsets that were read or
    committed after the backup may stand for other records now.
    """
    # SPEC "LIST_RANGES"
    header = ListRangesRequest(
        context.timeout_ms, store_commit=commit.number, store_life=commit.life
    )
    try:
        answers = await _list(context, header)
    except (InvalidRequestError, UnsupportedError):  # the server wants a stream to be named
        return None
    return not answers[-1].lacks_commit if answers[-1].store_life else None


def note_commit(router: Router, answer: ListRangesResponse) -> None:
    """Remember the commit that an answer reports."""
    if answer.store_life is not None:
        commit = StoreCommit(answer.store_commit, answer.store_life)
        router.last_commit = commit if commit.is_plausible else router.last_commit


async def _list(context: Context, header: ListRangesRequest) -> list[ListRangesResponse]:
    answers = await ask(context, Opcode.LIST_RANGES, header, ListRangesResponse)
    note_commit(context.router, answers[-1])
    return answers


async def list_ranges(
    context: Context, stream_ids: Sequence[int], *, as_of: int | None = None
) -> dict[int, tuple[RangeInfo, ...]]:
    """Return the ranges of each stream as the placement driver knows them now.

    Nothing is asked if the ranges are known `as_of` a revision that was just reported.
    """
    if as_of is None or context.router.maybe_revision(stream_ids) != as_of:
        check_errors(await refresh(context, stream_ids))
    return {each: context.router.maybe_ranges(each) or () for each in stream_ids}


def check_errors(errors: dict[int, SbpError]) -> None:
    """Raise the worst error of streams. A NotFoundError names the first missing streams."""
    for error in errors.values():
        if not isinstance(error, NotFoundError):
            raise error
    if errors:
        raise missing([f"stream {stream_id}" for stream_id in errors])


def missing(names: Sequence[str]) -> NotFoundError:
    """Return the error that names streams which do not exist."""
    return NotFoundError(
        StatusCode.NOT_FOUND,
        f"not found: {listed(names)}; create {'it' if len(names) == 1 else 'them'}, or list the"
        " streams to find the right name or id",
    )


def endless(what: str) -> ProtocolError:
    """Return the error for answers of servers that never agree about something."""
    return ProtocolError(
        f"the servers gave {limits.CHANGES_FOLLOWED_MAX} answers about {what}, and each time the"
        " placement had changed: a placement driver or range server is broken"
    )
