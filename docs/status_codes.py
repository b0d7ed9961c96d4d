"""The page of the status codes: what each means, who sends it, what the client does with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

from sbp_core import errors
from sbp_core.errors import SbpError, StatusCode, StatusError, error_for_code

OURS_NEVER: Final = "never this project's"

SENT_BY: Final[Mapping[StatusCode, str]] = {
    StatusCode.NONE: "both servers: success",
    StatusCode.UNKNOWN: "both servers: an unexpected error while the request was handled",
    StatusCode.INVALID_REQUEST: "both servers: a header that cannot be decoded, a value"
    " that is not allowed, a batch that is damaged or too large",
    StatusCode.UNSUPPORTED_VERSION: f"servers of another version; {OURS_NEVER}",
    StatusCode.PD_NOT_LEADER: "a placement driver that is not the leader of those on one PostgreSQL"
    " database (`detail` is a PlacementDriverCluster)",
    StatusCode.UNAUTHENTICATED: "both servers, if they want identities: a request on a connection"
    " without one, or after its end; HEARTBEAT with a token that is not acceptable",
    StatusCode.PERMISSION_DENIED: "a range server: END_TXN, SEAL_RANGE and APPEND of a copy of a"
    " transaction from a peer that has not proven to be the placement driver, and HEARTBEAT as the"
    " placement driver without that proof (`detail` is the challenge); the placement driver:"
    " HEARTBEAT or REPORT_METRICS of a range server with a wrong secret",
    StatusCode.NOT_FOUND: "the placement driver: no such stream; a range server: the stream was"
    " deleted",
    StatusCode.REQUEST_TIMEOUT: "both servers, if deadlines are negotiated: the `timeout_ms` of"
    " the request is over",
    StatusCode.CONFLICT: "the placement driver: the stream's name is taken; HEARTBEAT with the id,"
    " or the address, of another range server that is alive",
    StatusCode.CONDITION_FAILED: "the placement driver: UPDATE_STREAMS of a stream whose"
    " properties are not as expected; COMMIT_CURSORS of a cursor that is not where it was expected"
    " (`detail` is its offset, a big-endian int64)",
    StatusCode.TOO_MANY_REQUESTS: "a range server: too many appends wait for the disk (with"
    " `throttle_time_ms`); both servers: too many connections or open calls, also for"
    " the quota of an identity, and requests that waited too long for it",
    StatusCode.RANGE_ALREADY_SEALED: "a range server: APPEND to a sealed range",
    StatusCode.RANGE_NOT_FOUND: "a range server that does not host the range; the placement driver:"
    " the stream has no such range",
    StatusCode.OFFSET_OUT_OF_RANGE: "a range server: FETCH outside what it holds; the placement"
    " driver: TRIM_STREAMS beyond the tail. `detail` is the first and the next offset, two"
    " big-endian int64",
    StatusCode.CREATE_RANGE_BEFORE_SEAL: "the placement driver: the stream's last range is open",
    StatusCode.UNSUPPORTED_OPERATION: "both servers: an opcode that this kind of server does not"
    " serve",
    StatusCode.PD_INTERNAL: "the placement driver: its metadata changed during the request, or"
    " cannot be written, or a range server contradicts them",
    StatusCode.PD_NO_AVAILABLE_RS: "the placement driver: no live range server can host a range,"
    " or the server that knows a stream's tail does not answer",
    StatusCode.PD_STORE_UNAVAILABLE: "the placement driver: its PostgreSQL database is down, or"
    " ended the connection",
    StatusCode.SEAL_NO_SERVER_ANSWERED: "the placement driver: the server of the range to seal does"
    " not answer; nothing is stored, but the range may be sealed there",
    StatusCode.MEMBER_UNKNOWN: "the placement driver: GROUP_HEARTBEAT, or COMMIT_CURSORS with a"
    " `member_id`, of a consumer that is not in the group, or was expelled since then",
    StatusCode.STREAM_NOT_HELD: "the placement driver: COMMIT_CURSORS for a stream that the member"
    " does not hold, or without a member while the group has some",
    StatusCode.RS_INTERNAL: "a range server that cannot write its log and is about to exit, or"
    " cannot read what a FETCH requests",
    StatusCode.RS_DATA_CORRUPTED: "a range server: FETCH of a batch that is damaged on disk. The"
    " message names file, range and offsets; other offsets are served",
    StatusCode.RS_DISK_FULL: "a range server: APPEND while the free disk space is below"
    " `disk_free_floor_bytes` (with `throttle_time_ms`); the placement driver: the disk of its"
    " metadata is full",
    StatusCode.WRITER_GAP: "a range server: an earlier batch of the writer is missing. `detail` is"
    " the sequence that is expected, a big-endian int64",
    StatusCode.WRITER_REPEAT: "a range server: the writer's batch was appended, but its offset"
    " is no longer known",
    StatusCode.WRITER_UNKNOWN: "a range server: a writer that is unknown, or was forgotten, does"
    " not begin with sequence 0",
    StatusCode.WRITERS_NOT_THERE: "a range server: APPEND of a writer, before it has the state"
    " of the stream's writers on other servers, or a repeat of what is not on enough disks yet",
    StatusCode.TXN_ENDED: "a range server: APPEND of staged batches, or END_TXN, of a transaction"
    " that was published or dropped",
    StatusCode.TXN_INCOMPLETE: "a range server: another number of records is staged than END_TXN"
    " says",
    StatusCode.TXN_ABORTED: "the placement driver: COMMIT_TXN of a transaction that was given up,"
    " or whose range was trimmed",
    StatusCode.RS_SHUTTING_DOWN: "both servers: a request after GOAWAY",
}

OF_ITS_OWN: Final[Mapping[type[SbpError], str]] = {
    errors.NotLeaderError: "asks the leader that `detail` names, or the next known placement"
    " driver, after a backoff",
    errors.NoRangeServerError: "CREATE_STREAMS, APPEND and FETCH are retried after a backoff;"
    " others raise it, and the caller may retry",
    errors.SealUnansweredError: "raises it; the caller may retry",
}

NOTICE: Final = "<!-- Made by `python docs/generate.py` from the code. Do not edit. -->"

ERRORS_INTRODUCTION: Final = """\
# Status codes and errors

Every `status.code` of the protocol, which server sends it, and how the client reacts. Codes 0 to 5
are the specification's. The others are extensions. A status is in the header
of an answer (for the whole frame), in each item (for that item), or in a system error frame (the
call is over).

*Retriable*: the same call may succeed later. *Effect*: whether the request had an effect. A code
that is not listed keeps its number in a plain StatusError: not retriable, effect unknown.
"""

ERRORS_WITHOUT_CODE: Final = """
The client stops retrying an operation after `RETRY_BUDGET_MS` without progress. The pauses between
retries are random and grow from `RETRY_BACKOFF_MS` to `RETRY_BACKOFF_MS_MAX`, see `RetryPolicy` of
the [client](client.md).

## Errors without a code

The client raises them itself, without an answer or because of its bytes.
"""


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def yes_no(*, value: bool) -> str:
    """Return a word for a bool."""
    return "yes" if value else "no"


def what_the_client_does(error: SbpError) -> str:
    """Return what sbp_core.client makes of an error, by the error's own attributes."""
    if not error.retriable:
        return "raises it"
    if type(error) in OF_ITS_OWN:
        return OF_ITS_OWN[type(error)]
    again = "retries"
    if isinstance(error, StatusError):
        again = "after `throttle_time_ms` and a backoff, retries"
    if error.outcome is not errors.Outcome.NOT_APPLIED:
        again += " idempotent calls, and an APPEND whose caller accepts duplicates"
    return f"looks up the placement; {again}" if error.refreshes_placement else again


def code_row(code: StatusCode) -> list[str]:
    """Return a status code's row."""
    first = [str(int(code)), code.name]
    if code is StatusCode.NONE:
        return [*first, "-", "applied", SENT_BY[code], "-", "success"]
    error = error_for_code(code, "")
    return [
        *first,
        yes_no(value=error.retriable),
        error.outcome.value,
        SENT_BY[code],
        type(error).__name__,
        what_the_client_does(error),
    ]


def plain_errors() -> list[SbpError]:
    """Return one of each exception that stands for no status code, in the order of the module."""
    types = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    plain = [
        kind
        for kind in types
        if issubclass(kind, SbpError)
        and not issubclass(kind, StatusError | errors.LogError)
        and kind is not SbpError
    ]
    plain.sort(key=lambda kind: inspect.getsourcelines(kind)[1])
    return [kind() for kind in plain]


def errors_document() -> str:
    """Return the page of the status codes."""
    codes = table(
        ["code", "name", "retriable", "effect", "sent by", "exception", "what the client does"],
        [code_row(code) for code in StatusCode],
    )
    plain = table(
        ["exception", "retriable", "effect", "meaning", "what the client does"],
        [
            [
                type(error).__name__,
                yes_no(value=error.retriable),
                error.outcome.value,
                (inspect.getdoc(error) or "").splitlines()[0],
                what_the_client_does(error),
            ]
            for error in plain_errors()
        ],
    )
    return "\n".join([NOTICE, ERRORS_INTRODUCTION, *codes, ERRORS_WITHOUT_CODE, *plain, ""])
