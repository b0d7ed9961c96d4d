"""The exception tree. The class of an error, and its attributes, are what a caller decides by.

SbpError
+-- ConfigurationError          a setting, option or argument of ours is wrong
+-- ProtocolError               bytes that break the protocol
|   +-- FrameError              the framing itself: the connection cannot go on
|   +-- HeaderError             a header that is no valid FlatBuffers table
|   +-- RecordBatchError        a record batch that cannot be used
|       +-- DamagedBatchError   a stored one that cannot be decoded: its offsets hold no records
+-- SchemaError                 columns that a stream cannot have, or that do not fit
+-- TransportError
|   +-- ConnectError            no connection: nothing was sent
|   |   +-- TlsError            the server, or this end, is not trusted, or one speaks no TLS
|   |   +-- ClientClosedError   this end was closed before the call
|   +-- ConnectionLostError     the connection broke while a call was open
+-- DeadlineExceededError       no answer in time
+-- StatusError                 the peer answered with an error status
|   +-- RefusedError            nothing was done
|   |   +-- InvalidRequestError
|   |   +-- UnsupportedError
|   |   +-- UnauthenticatedError
|   |   +-- PermissionDeniedError
|   |   +-- NotFoundError
|   |   +-- AlreadyExistsError
|   |   +-- ConditionFailedError
|   |   +-- RangeNotFoundError
|   |   +-- RangeSealedError
|   |   +-- OffsetOutOfRangeError
|   |   +-- ThrottledError
|   |   +-- NotLeaderError
|   |   +-- RangeOpenError
|   |   +-- NoRangeServerError
|   |   +-- ShuttingDownError
|   |   +-- DiskFullError
|   |   +-- WriterGapError
|   |   +-- WritersNotThereError
|   |   +-- TxnEndedError
|   |   +-- TxnIncompleteError
|   |   +-- TxnAbortedError
|   |   +-- MemberUnknownError
|   |   +-- StreamNotHeldError
|   +-- RequestTimeoutError
|   +-- SealUnansweredError
|   +-- StoreUnavailableError
|   +-- StorageError
|   +-- WriterRepeatError
|   +-- WriterUnknownError
+-- LogError                    the durable log on this machine
    +-- LogCorruptionError
    +-- LogWriteError
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import ClassVar, Final, Self

from sbp_core.status_code import StatusCode as StatusCode  # noqa: PLC0414 - imported from here


class Outcome(enum.Enum):
    """The known effect of a failed call."""

    NOT_APPLIED = "not applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class SbpError(Exception):
    """Root of all errors of this project.

    `retriable`: the same call may succeed later. `refreshes_placement`: look the range up again
    before a retry. `outcome`: whether the call may have had its effect.
    """

    retriable: ClassVar[bool] = False
    refreshes_placement: ClassVar[bool] = False
    outcome: Outcome = Outcome.NOT_APPLIED


class ConfigurationError(SbpError):
    """A setting, option or argument is wrong; the message names it and says what to do."""


class ProtocolError(SbpError):
    """Bytes from the peer or from disk that break the protocol."""


class FrameError(ProtocolError):
    """The framing is broken, so the rest of the connection cannot be read."""


class HeaderError(ProtocolError):
    """A frame's extended header is not a valid table of its type."""


class RecordBatchError(ProtocolError):
    """A record batch is damaged, or in an encoding that this version cannot read."""


class DamagedBatchError(RecordBatchError):
    """A stored record batch cannot be decoded: offsets [start_offset, end_offset) of a stream.

    `stream_id` is what the batch itself names, which servers do not check; `cause` says what is
    wrong with it.
    """

    def __init__(
        self, cause: str = "", stream_id: int = -1, start_offset: int = 0, end_offset: int = 0
    ) -> None:
        super().__init__(cause, stream_id, start_offset, end_offset)
        self.stream_id = stream_id
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"record batch at offset {self.start_offset} of stream {self.stream_id} is damaged:"
            f" {self.cause}; the records at offsets [{self.start_offset}, {self.end_offset}) cannot"
            " be read"
        )


class SchemaError(SbpError):
    """Columns that a stream cannot have, or that do not fit those it has.

    `faults` names them one by one, where more than one may be wrong.
    """

    def __init__(self, message: str = "", faults: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class TransportError(SbpError):
    """The network failed."""

    retriable = True
    refreshes_placement = True


class ConnectError(TransportError):
    """No connection could be made; nothing was sent."""


class TlsError(ConnectError):
    """One end does not trust the other, or speaks no TLS; nothing that was sent had an effect.

    It is retriable, as another server of the cluster may be all right.
    """


class ClientClosedError(ConnectError):
    """The client was closed before the call; nothing was sent."""

    retriable = False
    refreshes_placement = False


class ConnectionLostError(TransportError):
    """The connection ended while a call was waiting for its answer."""

    outcome = Outcome.UNKNOWN


class DeadlineExceededError(SbpError):
    """No (complete) answer arrived before the call's deadline."""

    retriable = True
    refreshes_placement = True
    outcome = Outcome.UNKNOWN


_ERROR_BY_CODE: Final[dict[int, type[StatusError]]] = {}


class StatusError(SbpError):
    """The peer answered with an error status: `code`, and `detail` bytes whose form it defines.

    Subclasses list in `codes` the status codes they stand for; a code that no class claims keeps
    its number in a plain StatusError. The outcome is UNKNOWN for codes that do not rule an effect
    out. `throttle_time_ms` is the shortest wait that the peer asks for before another try.
    """

    codes: ClassVar[tuple[int, ...]] = ()
    outcome = Outcome.UNKNOWN
    throttle_time_ms: int = 0

    def __init_subclass__(cls) -> None:
        claimed: tuple[int, ...] = vars(cls).get("codes", ())  # not what it inherits
        assert not _ERROR_BY_CODE.keys() & claimed, f"{cls}: a code is claimed twice"
        _ERROR_BY_CODE.update(dict.fromkeys(claimed, cls))

    def __init__(self, code: int, message: str, detail: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail

    @classmethod
    def of(cls, message: str, detail: bytes = b"") -> Self:
        """Return an error of this class, with the first of its codes."""
        return cls(cls.codes[0], message, detail)

    def __str__(self) -> str:
        try:
            name = StatusCode(self.code).name
        except ValueError:
            name = "status"
        return f"{self.message} [{name} {self.code}]"

    def __reduce__(self) -> tuple[type[StatusError], tuple[int, str, bytes]]:
        return type(self), (self.code, self.message, self.detail)


class RefusedError(StatusError):
    """The peer refused what was asked for: it had no effect."""

    outcome = Outcome.NOT_APPLIED


class InvalidRequestError(RefusedError):
    """The request is malformed or asks for something that is not allowed."""

    codes = (StatusCode.INVALID_REQUEST,)


def invalid(message: str, detail: bytes = b"") -> InvalidRequestError:
    """Return the error of a request that no retry can make right."""
    return InvalidRequestError.of(message, detail)


class UnsupportedError(RefusedError):
    """The peer does not know the operation or a feature that the request needs."""

    codes = (StatusCode.UNSUPPORTED_VERSION, StatusCode.UNSUPPORTED_OPERATION)


class UnauthenticatedError(RefusedError):
    """The server does not know whom the client is: it needs a certificate or token, or another."""

    codes = (StatusCode.UNAUTHENTICATED,)


class PermissionDeniedError(RefusedError):
    """The server refuses the request: only another sender may make it.

    Some requests to range servers are for the placement driver of their cluster alone, which has to
    prove its identity first (SPEC "HEARTBEAT", extension).
    """

    codes = (StatusCode.PERMISSION_DENIED,)


class NotFoundError(RefusedError):
    """The stream does not exist (or was deleted)."""

    codes = (StatusCode.NOT_FOUND,)


class AlreadyExistsError(RefusedError):
    """The name of a stream is in use, or another range server has the same identity."""

    codes = (StatusCode.CONFLICT,)


class ConditionFailedError(RefusedError):
    """The stream's properties, or a cursor, are not as the request expects: nothing was changed.

    If it is a cursor, `detail` has the offset that it is at.
    """

    codes = (StatusCode.CONDITION_FAILED,)

    @staticmethod
    def encode_offset(next_offset: int) -> bytes:
        """Return `detail` of a cursor: a big-endian int64; -1 if there is none."""
        return next_offset.to_bytes(8, "big", signed=True)

    @property
    def current_offset(self) -> int | None:
        """The next offset of the cursor, -1 if there is none; None of the error of a stream."""
        return int.from_bytes(self.detail, "big", signed=True) if len(self.detail) == 8 else None


class RangeNotFoundError(RefusedError):
    """The server does not host the range."""

    codes = (StatusCode.RANGE_NOT_FOUND,)
    retriable = True
    refreshes_placement = True


class RangeSealedError(RefusedError):
    """The range is sealed; the stream goes on in another one."""

    codes = (StatusCode.RANGE_ALREADY_SEALED,)
    retriable = True
    refreshes_placement = True


_BOUNDS: Final = struct.Struct(">qq")


class OffsetOutOfRangeError(RefusedError):
    """The offset lies outside [start_offset, next_offset), the bounds that `detail` carries."""

    codes = (StatusCode.OFFSET_OUT_OF_RANGE,)

    @staticmethod
    def encode_bounds(start_offset: int, next_offset: int) -> bytes:
        """Return `detail`: two big-endian int64."""
        return _BOUNDS.pack(start_offset, next_offset)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """(start_offset, next_offset) that the server can serve, None if it did not say."""
        if len(self.detail) != _BOUNDS.size:
            return None
        start_offset, next_offset = _BOUNDS.unpack(self.detail)
        return start_offset, next_offset


class ThrottledError(RefusedError):
    """The server is over a limit; wait and try again."""

    codes = (StatusCode.TOO_MANY_REQUESTS,)
    retriable = True


class RequestTimeoutError(StatusError):
    """The server dropped the request at the deadline that it came with."""

    codes = (StatusCode.REQUEST_TIMEOUT,)
    retriable = True


class NotLeaderError(RefusedError):
    """The placement driver is not the leader; `detail` describes the cluster.

    Where the ranges are has nothing to do with it: the same call is for another one to answer.
    """

    codes = (StatusCode.PD_NOT_LEADER,)
    retriable = True


class RangeOpenError(RefusedError):
    """The stream's last range is open: seal it before another one can be created."""

    codes = (StatusCode.CREATE_RANGE_BEFORE_SEAL,)


class NoRangeServerError(RefusedError):
    """Too few range servers are alive, or the one that is needed does not answer."""

    codes = (StatusCode.PD_NO_AVAILABLE_RS,)
    retriable = True


class StoreUnavailableError(StatusError):
    """The placement driver lost the database of its metadata; a change may have been made."""

    codes = (StatusCode.PD_STORE_UNAVAILABLE,)
    retriable = True


class SealUnansweredError(StatusError):
    """The server of a range did not answer a seal, which it may have carried out."""

    codes = (StatusCode.SEAL_NO_SERVER_ANSWERED,)
    retriable = True


class ShuttingDownError(RefusedError):
    """The server is draining and accepts no new calls."""

    codes = (StatusCode.RS_SHUTTING_DOWN,)
    retriable = True
    refreshes_placement = True


class StorageError(StatusError):
    """The server cannot serve the request from its disk."""

    codes = (StatusCode.RS_INTERNAL, StatusCode.RS_DATA_CORRUPTED)


class DiskFullError(RefusedError):
    """The server's disk has no room for appends; reads go on."""

    codes = (StatusCode.RS_DISK_FULL,)
    retriable = True


class WriterGapError(RefusedError):
    """An earlier batch of the writer is missing: the one to append next is in `detail`."""

    codes = (StatusCode.WRITER_GAP,)

    @staticmethod
    def encode_expected(sequence: int) -> bytes:
        """Return `detail`: a big-endian int64."""
        return sequence.to_bytes(8, "big", signed=True)

    @property
    def expected(self) -> int | None:
        """The sequence that the server expects, None if it did not say."""
        return int.from_bytes(self.detail, "big", signed=True) if len(self.detail) == 8 else None


class WriterRepeatError(StatusError):
    """The batch was appended, too long ago for the server to know at which offset."""

    codes = (StatusCode.WRITER_REPEAT,)
    outcome = Outcome.APPLIED


class WriterUnknownError(StatusError):
    """The server does not know the writer: whether it has the batch is unknown.

    A server remembers the last WRITERS_PER_STREAM_MAX writers of a stream. Read the end of the
    stream to find out what was appended, then go on with a new writer.
    """

    codes = (StatusCode.WRITER_UNKNOWN,)


class WritersNotThereError(RefusedError):
    """The server has just got the range, and does not know the numbers of the writers yet.

    It gets them from the server of the range before. Retry: until then a repeat would be appended
    twice. Or this is a repeat, and too few servers have settled the range of the original.
    """

    codes = (StatusCode.WRITERS_NOT_THERE,)
    retriable = True
    refreshes_placement = True


class TxnEndedError(RefusedError):
    """The transaction was published or aborted before: nothing can be staged under its id."""

    codes = (StatusCode.TXN_ENDED,)


class TxnIncompleteError(RefusedError):
    """The server has not staged all records that the commit names: none of them was published."""

    codes = (StatusCode.TXN_INCOMPLETE,)


class TxnAbortedError(RefusedError):
    """The placement driver has given up one of the transactions that are to be committed."""

    codes = (StatusCode.TXN_ABORTED,)


class MemberUnknownError(RefusedError):
    """The consumer is not, or no longer, a member of its group: it was expelled, or never joined.

    It must stop reading for the group at once, as others may read its streams; it may join again.
    """

    codes = (StatusCode.MEMBER_UNKNOWN,)


class StreamNotHeldError(RefusedError):
    """A member of a group, and nobody else, commits the cursors of the streams that it holds."""

    codes = (StatusCode.STREAM_NOT_HELD,)


class LogError(SbpError):
    """The durable log on this machine."""


class LogCorruptionError(LogError):
    """Damage below the position known to be synced: reported, never cut."""


class LogWriteError(LogError):
    """A write or sync failed: nothing more may be acknowledged by this process."""

    outcome = Outcome.UNKNOWN


def error_for_code(code: int, message: str, detail: bytes = b"") -> StatusError:
    """Return the exception of an error status (never raises)."""
    return _ERROR_BY_CODE.get(code, StatusError)(code, message, detail)
