"""Records and batches of records, as a consumer hands them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sbp_core.client.types import plain_int
from sbp_core.records import offsets_array

NO_HEADERS: Final[Mapping[str, bytes | None]] = MappingProxyType({})

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Record(NamedTuple):
    """One record of a stream.

    `timestamp_us` is in microseconds since the epoch (UTC). Only the last header of each name is
    here; `batches` has all headers. A record of a typed stream has `columns`, and neither key,
    value nor headers.
    """

    stream: str
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = NO_HEADERS
    columns: Mapping[str, Any] | None = None

    @property
    def timestamp(self) -> datetime:
        """When the record was written, by the clock of its producer, in UTC.

        Raises ValueError for a time outside the years 1 to 9999.
        """
        try:
            return _EPOCH + self.timestamp_us * _MICROSECOND
        except OverflowError:
            raise ValueError(
                f"timestamp_us {self.timestamp_us} is outside the years 1 to 9999 of a datetime;"
                " use timestamp_us"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (*self[:5], dict(self.headers), self.columns)


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one stream, the first of which is at `base_offset`.

    `rows` has the columns of a typed stream, or else the columns of `ROWS_SCHEMA`. `times` are the
    times when the records were written; a record without a time has the time of its record batch.
    """

    stream: str
    base_offset: int
    rows: pa.RecordBatch
    times: pa.TimestampArray
    is_typed: bool

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + len(self)

    @property
    def offsets(self) -> pa.Int64Array:
        """The offset of each row."""
        return offsets_array(self.base_offset, len(self))


def timestamp_us_of(time: datetime) -> int:
    """Return microseconds since the epoch; a time without a zone is local time."""
    return (time.astimezone(UTC) - _EPOCH) // _MICROSECOND


_FIRST_US: Final = timestamp_us_of(datetime.min.replace(tzinfo=UTC))
_LAST_US: Final = timestamp_us_of(datetime.max.replace(tzinfo=UTC))


def checked_timestamp_us(given: object) -> int:
    """Return the time of a record that is sent, in microseconds since the epoch.

    `given` is microseconds, as an integer of Python or numpy, or a datetime. Raises TypeError for
    anything else, ValueError for a time outside the years 1 to 9999.
    """
    if isinstance(given, datetime):
        try:
            return timestamp_us_of(given)
        except OverflowError:
            raise ValueError(f"{given} is outside the years 1 to 9999 in UTC") from None
    if type(given) is not int:
        given = plain_int(given)
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(
            f"timestamp_us is {given!r:.80}; pass microseconds since 1970 as an int, or a datetime"
        )
    if not _FIRST_US <= given <= _LAST_US:
        raise ValueError(
            f"timestamp_us {given} is outside the years 1 to 9999; pass microseconds since 1970"
        )
    return given
