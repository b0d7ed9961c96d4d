"""Options of the sink about its streams: which ones, in which form, and the bad records."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sbp_core import limits
from sbp_core.client import StreamSpec
from sbp_spark.options.declaring import (
    COLUMN_NAMES,
    COUNT,
    DURATION,
    FLAG,
    SIZE,
    TEXT,
    Given,
    Kind,
    OptionReader,
    at_most,
    option,
    reads,
    word,
)
from sbp_spark.options.stream_selection import (
    NO_STREAMS,
    STREAM,
    STREAM_LIST,
    StreamRef,
    maybe_stream_ref,
)

_DEAD_LETTER: Final = "deadletter:"


class Routing(Enum):
    """Values of the option `routing`: how a row gets one of several streams."""

    KEY = "key"
    ROUND_ROBIN = "round-robin"


_STREAM: Final = option("stream", STREAM, None, unset="the column `stream`", kafka="topic").doc(
    "Stream to write to, a name or id; overrides the columns `stream` and `stream_id`. Where the"
    " column `stream` is null or missing, `stream_id` names the stream."
)
_STREAMS: Final = option("streams", STREAM_LIST, NO_STREAMS, unset="none", kafka="subscribe").doc(
    "Instead of `stream`: several streams, separated by commas, over which the rows are spread as"
    " `routing` says."
)


def _read_refs(reader: OptionReader) -> tuple[StreamRef, ...]:
    reader.check_single((_STREAM, _STREAMS))
    if reader.is_given("streams"):
        return reader.value(_STREAMS).refs
    ref = reader.value(_STREAM)
    return (ref,) if ref else ()


@dataclass(frozen=True, slots=True)
class Targets:
    """The streams that options name; with none of them each row names its own."""

    refs: tuple[StreamRef, ...] = field(default=(), metadata=reads(_read_refs, _STREAM, _STREAMS))
    routing: Routing = option("routing", word(Routing), Routing.KEY, needs="streams").field(
        "How a row gets one of `streams`. `key`: the stream at place crc32(key) mod their number,"
        " counted from 0, as Spark's function crc32 computes it, so one key always gets the same"
        " stream while the list stays as it is; rows without a key go round robin. `round-robin`:"
        " each task goes from stream to stream, row by row. Columns have a key if `routingColumn`"
        " names one, and go round robin otherwise."
    )

    @property
    def where(self) -> str:
        """The option or column that names the streams, as messages call it."""
        if not self.refs:
            return "column stream"
        return "option stream" if len(self.refs) == 1 else "option streams"


class SinkEncoding(Enum):
    """Values of the sink's option `encoding`."""

    ROWS = "rows"
    COLUMNS = "columns"


ENCODING: Final = option("encoding", word(SinkEncoding), SinkEncoding.ROWS).doc(
    "Form of the records. `rows`: plain records, from the columns key, value, headers and"
    " timestamp. `columns`: every column of the DataFrame, with its type, to typed streams, which"
    " `stream` or `streams` name; only the struct `_metadata` that a source adds, or some of its"
    " fields, is left out. The first write gives a stream its schema; a column which Spark knows to"
    " have no nulls becomes required. Later writes have to match it by the names of columns:"
    " nullable columns may be missing, types may be narrower, the order does not matter. Plain"
    " records and columns do not mix in one stream."
)


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """How columns are written.

    `is_merging` lets the schemas of streams grow; the columns named may have a row's stream, and
    its time.
    """

    is_merging: bool = option("mergeSchema", FLAG, False, needs="encoding=columns").field(
        "With encoding=columns: whether the schemas of streams may grow, so that new columns are"
        " added, which are null in what was written before, types widen (integers, floats, decimals"
        " to larger ones), and required columns may be null. No column is ever removed. Without it"
        " such a DataFrame is refused, with what differs; but a column that may be null where the"
        " stream requires it is accepted, and a null in it is a bad record."
    )
    routing_column: str | None = option(
        "routingColumn", TEXT, None, unset="none", needs="encoding=columns"
    ).field(
        "With encoding=columns and `streams`: the column whose value is the key of `routing`, as"
        " text (cast to string) or bytes. A string, binary, integer, boolean or date (years 0 to"
        " 9999)."
    )
    timestamp_column: str | None = option(
        "timestampColumn", TEXT, None, unset="none", needs="encoding=columns"
    ).field(
        "With encoding=columns: the timestamp column with the time of a row's event; readers get it"
        " as the record's timestamp. Without it that is the time of writing."
    )
    stats_columns: tuple[str, ...] = option(
        "statsColumns", COLUMN_NAMES, (), unset="none", needs="encoding=columns"
    ).field(
        "With encoding=columns: the columns whose least and greatest values each record batch"
        " carries, such as `price,place.city`, so that a source with `where` skips batches. It pays"
        " for columns by which rows are sorted or clustered. Possible are numbers, strings without"
        " a collation, binary, booleans, dates and timestamps, also as fields of structs; case does"
        " not matter. They take up to 4 KiB of a batch."
    )


def read_columns(reader: OptionReader) -> ColumnOptions | None:
    """Return how columns are written, None if plain records are."""
    encoding = reader.value(ENCODING)
    columns = reader.group(ColumnOptions)
    if encoding is SinkEncoding.ROWS:
        return None
    has_column = reader.is_given("routingColumn")
    if not reader.is_given("stream") and not reader.is_given("streams"):
        wrong = "is columns without stream or streams; a column stream would be data like others"
        reader.add_fault("encoding", wrong, 'add .option("stream", "name")')
    if has_column and not reader.is_given("streams"):
        reader.add_fault("routingColumn", "is given without streams", "add streams, or remove it")
    if has_column and reader.is_given("routing", Routing.ROUND_ROBIN.value):
        reader.add_fault("routingColumn", "is given beside routing=round-robin", "keep one")
    if not has_column and reader.is_given("routing", Routing.KEY.value):
        wrong = "is key without routingColumn, and columns have no key of their own"
        reader.add_fault("routing", wrong, "add routingColumn, or remove it")
    return columns


CREATE_STREAMS: Final = option("createStreams", FLAG, False).doc(
    "Whether streams that an option or a column names, and that do not exist, are created. A write"
    " looks up the streams that options name when it is planned; a streaming query with the option"
    " checkpointLocation does so at its first micro-batch in a Spark session. A stream that is"
    " renamed later is still written to, and no stream is created under the old name. In another"
    " session, give the new name or the id."
)


@dataclass(frozen=True, slots=True)
class Creation:
    """The settings of streams that are created; retention 0 keeps records for ever."""

    replica_count: int = option(
        "createReplicas",
        at_most(limits.REPLICAS_MAX, COUNT, f"1 to {limits.REPLICAS_MAX} replicas"),
        1,
        needs="createStreams=true",
    ).field(
        "Range servers that store each record of a stream that is created. A record is acknowledged"
        " once a majority of them have it on disk."
    )
    retention_period_ms: int = option(
        "createRetentionPeriod", DURATION, 0, unset="for ever", needs="createStreams=true"
    ).field("How long a stream that is created keeps records, such as 7d.")
    retention_bytes: int = option(
        "createRetentionBytes", SIZE, 0, unset="unlimited", needs="createStreams=true"
    ).field("How much each range server keeps of a stream that is created, such as 10g.")

    def spec(self, name: str) -> StreamSpec:
        """Return the stream to create."""
        return StreamSpec(name, self.replica_count, self.retention_period_ms, self.retention_bytes)


def read_creation(reader: OptionReader) -> Creation | None:
    """Return the settings of streams that are created, None if none are."""
    is_creating = reader.value(CREATE_STREAMS)
    creation = reader.group(Creation)
    return creation if is_creating else None


class OnBadRecord(Enum):
    """Values of onBadRecord, without the stream."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "deadletter"


@dataclass(frozen=True, slots=True)
class BadRecordPolicy:
    """The option onBadRecord; `dead_letters` is the stream of rows that cannot be written."""

    action: OnBadRecord = OnBadRecord.FAIL
    dead_letters: StreamRef | None = None


def _parse_bad_records(given: Given) -> BadRecordPolicy | None:
    if given.text.lower().startswith(_DEAD_LETTER):
        stream = given._replace(text=given.text[len(_DEAD_LETTER) :].strip())
        return BadRecordPolicy(OnBadRecord.DEAD_LETTER, maybe_stream_ref(stream))
    if given.text.lower() in {OnBadRecord.FAIL.value, OnBadRecord.SKIP.value}:
        return BadRecordPolicy(OnBadRecord(given.text.lower()))
    given.refuse("fail, skip, or deadletter:STREAM")
    return None


BAD_RECORDS: Final = Kind(_parse_bad_records, lambda policy: policy.action.value)
