"""Programs for consumer groups: how far they have come in their streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbp_core.client.programs.calls import Context, ask, unanswered, with_message
from sbp_core.client.programs.program import Program
from sbp_core.client.programs.range_placement import check_errors, chunks
from sbp_core.client.types import NO_CURSOR, CursorInfo, GroupInfo
from sbp_core.errors import ConfigurationError, NotFoundError, SbpError
from sbp_core.wire.headers import (
    CommitCursorsRequest,
    CommitCursorsResponse,
    Cursor,
    DescribeCursorsRequest,
    DescribeCursorsResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error


def commit_cursors(context: Context, group: str, offsets: Mapping[int, int]) -> Program[None]:
    """Set the offsets that a group reads next, by stream id; NO_CURSOR forgets one.

    Raises ConfigurationError for what is no offset, InvalidRequestError for a group's name that is
    not allowed, NotFoundError naming all missing streams. The others are set nevertheless.
    """
    for stream_id, offset in offsets.items():
        if not NO_CURSOR <= offset < 2**63:
            raise ConfigurationError(
                f"cursor {offset} of stream {stream_id} is not an offset, 0 or more, nor"
                f" {NO_CURSOR} to forget the cursor"
            )
    errors: dict[int, SbpError] = {}
    for chunk in chunks(list(offsets)):
        header = CommitCursorsRequest(
            timeout_ms=context.timeout_ms,
            group=group,
            cursors=tuple(Cursor(stream_id, offsets[stream_id]) for stream_id in chunk),
        )
        answers = yield from ask(context, Opcode.COMMIT_CURSORS, header, CommitCursorsResponse)
        for stream_id, cursor in _answered(answers, chunk).items():
            error = maybe_error(cursor.status)
            if isinstance(error, NotFoundError):
                errors[stream_id] = error
            elif error is not None:
                errors[stream_id] = with_message(error, f"cursor of stream {stream_id}: ")
    check_errors(errors)


def describe_cursors(
    context: Context, group: str, stream_ids: Sequence[int] = ()
) -> Program[list[CursorInfo]]:
    """Return a group's cursors: those of the streams named, in that order, or all by stream id.

    A stream without a cursor is left out. Raises InvalidRequestError for a group's name that is not
    allowed.
    """
    found: list[CursorInfo] = []
    for chunk in chunks(list(dict.fromkeys(stream_ids))) if stream_ids else [()]:
        header = DescribeCursorsRequest(context.timeout_ms, group, tuple(chunk))
        answers = yield from ask(context, Opcode.DESCRIBE_CURSORS, header, DescribeCursorsResponse)
        cursors = [cursor for answer in answers for cursor in answer.cursors]
        if chunk:
            cursors = list(_answered(answers, chunk).values())
        for cursor in cursors:
            error = maybe_error(cursor.status)
            if error is not None:
                raise with_message(error, f"cursor of stream {cursor.stream_id}: ")
            if cursor.next_offset != NO_CURSOR:
                found.append(
                    CursorInfo(cursor.stream_id, cursor.next_offset, cursor.committed_at_ms)
                )
    return found


def list_groups(context: Context) -> Program[list[GroupInfo]]:
    """Return the consumer groups that have cursors, by name."""
    header = DescribeCursorsRequest(timeout_ms=context.timeout_ms)
    answers = yield from ask(context, Opcode.DESCRIBE_CURSORS, header, DescribeCursorsResponse)
    return [
        GroupInfo(cursor.group, cursor.committed_at_ms)
        for answer in answers
        for cursor in answer.cursors
        if cursor.group is not None
    ]


def _answered(
    answers: Sequence[CommitCursorsResponse] | Sequence[DescribeCursorsResponse],
    stream_ids: Sequence[int],
) -> dict[int, Cursor]:
    """Return what was answered for each stream, in the order asked for."""
    results = [cursor for answer in answers for cursor in answer.cursors]
    if [cursor.stream_id for cursor in results] != list(stream_ids):
        raise unanswered(f"some of the {len(stream_ids)} cursors that were asked for")
    return dict(zip(stream_ids, results, strict=True))
