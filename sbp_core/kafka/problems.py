"""Errors of the cluster as error codes of Kafka's protocol, by class."""

from __future__ import annotations

import logging
from typing import Final

from kio.schema.errors import ErrorCode

from sbp_core import errors
from sbp_core.errors import SbpError

_LOG: Final = logging.getLogger(__name__)

_CODE_OF: Final[dict[type[SbpError], ErrorCode]] = {
    SbpError: ErrorCode.unknown_server_error,
    errors.ConfigurationError: ErrorCode.invalid_request,
    errors.RecordBatchError: ErrorCode.invalid_record,
    errors.SchemaError: ErrorCode.invalid_record,
    errors.TransportError: ErrorCode.coordinator_not_available,
    errors.DeadlineExceededError: ErrorCode.request_timed_out,
    errors.RequestTimeoutError: ErrorCode.request_timed_out,
    errors.SealUnansweredError: ErrorCode.request_timed_out,
    errors.InvalidRequestError: ErrorCode.invalid_request,
    errors.UnsupportedError: ErrorCode.unsupported_version,
    errors.UnauthenticatedError: ErrorCode.sasl_authentication_failed,
    errors.PermissionDeniedError: ErrorCode.topic_authorization_failed,
    errors.NotFoundError: ErrorCode.unknown_topic_or_partition,
    errors.AlreadyExistsError: ErrorCode.topic_already_exists,
    errors.OffsetOutOfRangeError: ErrorCode.offset_out_of_range,
    errors.ThrottledError: ErrorCode.throttling_quota_exceeded,
    errors.NoRangeServerError: ErrorCode.invalid_replication_factor,
    errors.StorageError: ErrorCode.kafka_storage_error,
    errors.DiskFullError: ErrorCode.kafka_storage_error,
    errors.WriterUnknownError: ErrorCode.unknown_producer_id,
    errors.WriterGapError: ErrorCode.out_of_order_sequence_number,
    errors.WriterRepeatError: ErrorCode.duplicate_sequence_number,
    errors.MemberUnknownError: ErrorCode.unknown_member_id,
}
"""A class that is not listed has the code of its base class."""

_RETRIED: Final = ErrorCode.not_leader_or_follower
"""Clients look up the leader and send again: for what may work soon, about a partition."""


def error_code(error: SbpError) -> ErrorCode:
    """Return the code of an error, whose text is logged: most responses have no room for it."""
    code = next(_CODE_OF[each] for each in type(error).__mro__ if each in _CODE_OF)
    level = logging.WARNING if code is ErrorCode.unknown_server_error else logging.DEBUG
    _LOG.log(level, "request refused code=%s: %s", code.name, error)
    return code


def partition_code(error: SbpError) -> ErrorCode:
    """Return the code of an error about one partition, which clients may send to again."""
    if isinstance(error, errors.TransportError | errors.ShuttingDownError):
        return _RETRIED
    code = error_code(error)
    is_unclear = code is ErrorCode.unknown_server_error and getattr(error, "retriable", False)
    return _RETRIED if is_unclear else code
