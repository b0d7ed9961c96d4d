"""Retries, placement refreshes and outcomes: the decision for each status code and error."""

from __future__ import annotations

import pickle

import pytest

from sbp_core import errors
from sbp_core.errors import (
    AlreadyExistsError,
    ClientClosedError,
    ConditionFailedError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DamagedBatchError,
    DeadlineExceededError,
    DiskFullError,
    FrameError,
    HeaderError,
    InvalidRequestError,
    LogCorruptionError,
    LogError,
    LogWriteError,
    MemberUnknownError,
    NoRangeServerError,
    NotFoundError,
    NotLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    PermissionDeniedError,
    ProtocolError,
    RangeNotFoundError,
    RangeOpenError,
    RangeSealedError,
    RecordBatchError,
    RefusedError,
    RequestTimeoutError,
    SbpError,
    SchemaError,
    SealUnansweredError,
    ShuttingDownError,
    StatusCode,
    StatusError,
    StorageError,
    StoreUnavailableError,
    StreamNotHeldError,
    ThrottledError,
    TlsError,
    TransportError,
    TxnAbortedError,
    TxnEndedError,
    TxnIncompleteError,
    UnauthenticatedError,
    UnsupportedError,
    WriterGapError,
    WriterRepeatError,
    WritersNotThereError,
    WriterUnknownError,
    error_for_code,
)
from sbp_core.wire.status import maybe_error, status_for

NO, MAYBE = Outcome.NOT_APPLIED, Outcome.UNKNOWN
AGAIN, LOOK_UP = True, True

CODES = {  # code: exception, retriable, refreshes_placement, outcome
    StatusCode.UNKNOWN: (StatusError, False, False, MAYBE),
    StatusCode.INVALID_REQUEST: (InvalidRequestError, False, False, NO),
    StatusCode.UNSUPPORTED_VERSION: (UnsupportedError, False, False, NO),
    StatusCode.PD_NOT_LEADER: (NotLeaderError, AGAIN, False, NO),
    StatusCode.UNAUTHENTICATED: (UnauthenticatedError, False, False, NO),
    StatusCode.PERMISSION_DENIED: (PermissionDeniedError, False, False, NO),
    StatusCode.NOT_FOUND: (NotFoundError, False, False, NO),
    StatusCode.REQUEST_TIMEOUT: (RequestTimeoutError, AGAIN, False, MAYBE),
    StatusCode.CONFLICT: (AlreadyExistsError, False, False, NO),
    StatusCode.CONDITION_FAILED: (ConditionFailedError, False, False, NO),
    StatusCode.TOO_MANY_REQUESTS: (ThrottledError, AGAIN, False, NO),
    StatusCode.RANGE_ALREADY_SEALED: (RangeSealedError, AGAIN, LOOK_UP, NO),
    StatusCode.RANGE_NOT_FOUND: (RangeNotFoundError, AGAIN, LOOK_UP, NO),
    StatusCode.OFFSET_OUT_OF_RANGE: (OffsetOutOfRangeError, False, False, NO),
    StatusCode.CREATE_RANGE_BEFORE_SEAL: (RangeOpenError, False, False, NO),
    StatusCode.UNSUPPORTED_OPERATION: (UnsupportedError, False, False, NO),
    StatusCode.PD_INTERNAL: (StatusError, False, False, MAYBE),
    StatusCode.PD_NO_AVAILABLE_RS: (NoRangeServerError, AGAIN, False, NO),
    StatusCode.PD_STORE_UNAVAILABLE: (StoreUnavailableError, AGAIN, False, MAYBE),
    StatusCode.SEAL_NO_SERVER_ANSWERED: (SealUnansweredError, AGAIN, False, MAYBE),
    StatusCode.RS_INTERNAL: (StorageError, False, False, MAYBE),
    StatusCode.RS_DATA_CORRUPTED: (StorageError, False, False, MAYBE),
    StatusCode.RS_DISK_FULL: (DiskFullError, AGAIN, False, NO),
    StatusCode.RS_SHUTTING_DOWN: (ShuttingDownError, AGAIN, LOOK_UP, NO),
    StatusCode.WRITER_GAP: (WriterGapError, False, False, NO),
    StatusCode.WRITER_REPEAT: (WriterRepeatError, False, False, Outcome.APPLIED),
    StatusCode.WRITER_UNKNOWN: (WriterUnknownError, False, False, MAYBE),
    StatusCode.WRITERS_NOT_THERE: (WritersNotThereError, AGAIN, LOOK_UP, NO),
    StatusCode.TXN_ENDED: (TxnEndedError, False, False, NO),
    StatusCode.TXN_INCOMPLETE: (TxnIncompleteError, False, False, NO),
    StatusCode.TXN_ABORTED: (TxnAbortedError, False, False, NO),
    StatusCode.MEMBER_UNKNOWN: (MemberUnknownError, False, False, NO),
    StatusCode.STREAM_NOT_HELD: (StreamNotHeldError, False, False, NO),
}

PLAIN = {
    SbpError: (False, False, NO),
    ConfigurationError: (False, False, NO),
    ProtocolError: (False, False, NO),
    FrameError: (False, False, NO),
    HeaderError: (False, False, NO),
    RecordBatchError: (False, False, NO),
    DamagedBatchError: (False, False, NO),
    SchemaError: (False, False, NO),
    TransportError: (AGAIN, LOOK_UP, NO),
    ConnectError: (AGAIN, LOOK_UP, NO),
    TlsError: (AGAIN, LOOK_UP, NO),
    ClientClosedError: (False, False, NO),
    ConnectionLostError: (AGAIN, LOOK_UP, MAYBE),
    DeadlineExceededError: (AGAIN, LOOK_UP, MAYBE),
    LogError: (False, False, NO),
    LogCorruptionError: (False, False, NO),
    LogWriteError: (False, False, MAYBE),
}


def decisions(error: SbpError) -> tuple[bool, bool, Outcome]:
    return error.retriable, error.refreshes_placement, error.outcome


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_status_code_decides_the_outcome_and_the_retry(code) -> None:
    kind, *expected = CODES[code]
    error = error_for_code(code, "why", b"detail")
    assert type(error) is kind
    assert decisions(error) == tuple(expected)
    assert maybe_error(status_for(error)).__reduce__() == error.__reduce__()
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == f"why [{code.name} {code}]"


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_an_error_without_a_code_decides_the_outcome_and_the_retry(kind) -> None:
    assert decisions(kind("why")) == PLAIN[kind]


def test_the_tables_leave_nothing_out() -> None:
    assert {*CODES, StatusCode.NONE} == {*StatusCode}
    known = {kind for kind, *_ in CODES.values()} | {*PLAIN}
    defined = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, SbpError)
    }
    assert defined - known == {RefusedError}


def test_a_class_of_its_own_changes_no_answer() -> None:
    class OwnNotFoundError(NotFoundError):
        pass

    assert type(error_for_code(StatusCode.NOT_FOUND, "why")) is NotFoundError
    with pytest.raises(AssertionError, match="claimed twice"):
        type("Twice", (StatusError,), {"codes": (StatusCode.NOT_FOUND,)})


def test_an_unknown_code_keeps_its_number_and_may_have_been_applied() -> None:
    error = error_for_code(4242, "what")
    assert type(error) is StatusError
    assert decisions(error) == (False, False, MAYBE)
    assert str(error) == "what [status 4242]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HeaderError("x"), StatusCode.INVALID_REQUEST),
        (RecordBatchError("x"), StatusCode.INVALID_REQUEST),
        (SchemaError("x"), StatusCode.INVALID_REQUEST),
        (ConfigurationError("x"), StatusCode.INVALID_REQUEST),
        (LogError("x"), StatusCode.RS_INTERNAL),
        (SbpError("x"), StatusCode.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SbpError) else value.name,
)
def test_which_code_tells_a_peer_of_an_error_that_has_none(error, code) -> None:
    assert (status_for(error).code, status_for(error).message) == (code, "x")
