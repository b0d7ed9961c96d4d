"""Options of the sink: delivery, batching, and, from `sink_targets`, its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sbp_core import limits
from sbp_core.client import is_producer
from sbp_core.limits import PRODUCER_LENGTH_MAX
from sbp_core.records import Compression
from sbp_spark.options.declaring import (
    COUNT,
    DURATION,
    FLAG,
    SIZE,
    Given,
    Kind,
    Only,
    OptionReader,
    at_most,
    option,
    options_of,
    reads,
    whole,
    word,
    words,
)
from sbp_spark.options.endpoints import Servers, is_table_given
from sbp_spark.options.sink_targets import (
    BAD_RECORDS,
    CREATE_STREAMS,
    ENCODING,
    BadRecordPolicy,
    ColumnOptions,
    Creation,
    Targets,
    read_columns,
    read_creation,
)
from sbp_spark.options.stream_selection import FoundStream

_KEYS_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "table"})
_ONE_SHOT: Final = "once-"
"""How the names of producers begin that are soon forgotten: see `one_shot_producer`."""
_NUMBERED: Final = Only(False, "is given in a streaming write, which numbers its batches itself")


_COMPRESSIONS: Final[Mapping[str, Compression]] = {"none": "none", "lz4": "lz4", "zstd": "zstd"}


class Delivery(Enum):
    """Values of the option `delivery`."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class OnReplayMismatch(Enum):
    """Values of the option `onReplayMismatch`."""

    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The number of a producer's batch. Only the first decision about the batch counts."""

    producer: str
    batch_number: int

    def __str__(self) -> str:
        return f"batch {self.batch_number} of {self.producer}"


def _parse_producer(given: Given) -> str | None:
    if is_producer(given.text) and not given.text.startswith(_ONE_SHOT):
        return given.text
    characters = f"1 to {PRODUCER_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -"
    given.refuse(f"{characters}, not beginning with {_ONE_SHOT}")
    return None


_APP_ID: Final = option(
    "txnAppId",
    Kind(_parse_producer),
    None,
    unset="none",
    needs="txnVersion",
    only=_NUMBERED,
).doc(
    "With txnVersion: name of an application that numbers its batch writes, so that a write that"
    " is repeated, as by foreachBatch, writes nothing. Up to 64 of A-Z a-z 0-9 . _ -, not beginning"
    " with once-. Without the two options each batch write is atomic, and writes its rows again"
    " when it is repeated."
)
_VERSION: Final = option(
    "txnVersion",
    whole(0, "a whole number from 0 on, larger with each write"),
    None,
    unset="none",
    needs="txnAppId",
    only=_NUMBERED,
).doc(
    "Number of the write, such as foreachBatch's batch id. A number that is not above that of the"
    " last write with this txnAppId was written before. Writes of one DataFrame to several places"
    " in one foreachBatch need a txnAppId each."
)


def _maybe_key(reader: OptionReader) -> BatchKey | None:
    app_id, version = reader.value(_APP_ID), reader.value(_VERSION)
    return None if app_id is None or version is None else BatchKey(app_id, version)


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The guarantee of a write: how often a row is there afterwards.

    `key` is the batch number that the user gave to a batch write. With `is_truncating` older
    records of the streams are trimmed. A query has a producer for each `generation`.
    """

    delivery: Delivery = option("delivery", word(Delivery), Delivery.EXACTLY_ONCE).field(
        "`exactly-once`: rows are staged, and become readable when Spark commits the micro-batch or"
        " the write as a whole: each row once, however often tasks, commits or the query are"
        " repeated, also in other partitions. A write to several streams is all or nothing, though"
        " not visible in all of them at the same instant. At most 100000 parts, one for each stream"
        ' of each task, are committed together: beyond that use .repartition("stream"). A new'
        " checkpoint is a new query."
        " `at-least-once`: rows are readable as soon as they are appended, and what a task wrote"
        " before it failed stays; also for servers without transactions."
    )
    on_replay_mismatch: OnReplayMismatch = option(
        "onReplayMismatch", word(OnReplayMismatch), OnReplayMismatch.FAIL
    ).field(
        "Reaction to a micro-batch that was committed before and now has other rows, or other"
        " streams. `fail` fails the query before any row is skipped: the checkpoint was copied,"
        " rewound or restored, see writerGeneration. `warn` skips the rows, as the first commit"
        " counts, and logs that (`sbp_spark`): for a query that does not give the same rows each"
        " time. A digest of another version counts as different. A batch below the last committed"
        " one whose outcome is no longer known fails in any case. In a batch write only with"
        " txnAppId."
    )
    generation: int = option(
        "writerGeneration",
        whole(0, "a whole number from 0 on"),
        0,
        only=Only(True, "is given in a batch write", "change txnAppId"),
    ).field(
        "A number that a query never had before lets it commit batch numbers again that it has"
        " committed: after its checkpoint was rewound or restored, or in a copy of it. Rows of"
        " batches that are repeated are then written once more. Keep the number from then on."
    )
    key: BatchKey | None = field(default=None, metadata=reads(_maybe_key, _APP_ID, _VERSION))
    is_truncating: bool = option(
        "truncate",
        FLAG,
        False,
        only=_NUMBERED._replace(wrong="is given in a streaming write, which only ever appends"),
    ).field(
        "Required for mode('overwrite'): when the new rows can be read, the records from before the"
        " commit are trimmed from the streams that `stream` or `streams` name, or that the rows are"
        " for; that of dead letters is left alone. So a write that fails before it is committed"
        " loses nothing, and for a moment readers see both. If the new rows cannot be read within a"
        " minute, because a server is down, or some of them are lost (`sbp txns give-up`), nothing"
        " is trimmed and the write fails. Not with txnAppId."
    )

    def check_options(self, reader: OptionReader) -> None:
        """Add a fault for options that have no effect beside the others, or contradict them."""
        is_replay = self.key is not None or reader.streaming is not False
        if reader.is_given("onReplayMismatch") and not is_replay:
            wrong = "is given without txnAppId and txnVersion, so no write is a replay of another"
            reader.add_fault("onReplayMismatch", wrong, "add them, or remove it")
        if self.delivery is Delivery.AT_LEAST_ONCE:
            deciding = tuple(each for each in options_of(type(self)) if each.name != "delivery")
            reader.refuse_given(deciding, "is given beside delivery=at-least-once")
        elif self.is_truncating and self.key is not None:
            wrong = "is given beside txnAppId: if the write was done before, its own rows would go"
            reader.add_fault("truncate", wrong, "keep one")


@dataclass(frozen=True, slots=True)
class Batching:
    """Limits of a record batch: bytes, records, and `linger_ms` since its first row."""

    target_bytes: int = option(
        "batchBytes",
        at_most(
            limits.RECORD_BYTES_MAX,
            SIZE,
            f"{limits.RECORD_BYTES_MAX} bytes at most, which is what a server accepts",
        ),
        limits.BATCH_TARGET_BYTES,
    ).field(
        "Approximate bytes of a record batch before compression. Rows of one stream are collected"
        " until they reach it, or the task ends."
    )
    records_max: int = option(
        "batchRecords",
        at_most(
            limits.BATCH_RECORDS_MAX,
            COUNT,
            f"{limits.BATCH_RECORDS_MAX} at most, which is what a server accepts",
        ),
        limits.BATCH_RECORDS_MAX,
    ).field("Most records of a record batch.")
    linger_ms: int | None = option(
        "lingerDuration", DURATION, None, unset="unlimited", needs="delivery=at-least-once"
    ).field(
        "How long rows wait for others, such as 1s, before their record batch is sent; checked when"
        " more rows arrive. Without it they wait until the record batch is full or the task ends."
        " With delivery=at-least-once only."
    )
    compression: Compression = option(
        "batchCompression", words(_COMPRESSIONS), _COMPRESSIONS["none"]
    ).field(
        "Compression of record batches, on the network, on the servers' disks and up to the"
        " readers: none, lz4 or zstd."
    )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a sink; with a `creation` missing streams are created.

    With `columns` columns are written, without them plain records. `found` maps the names in the
    options to the streams that had these names when the write was planned: the write goes to these
    streams as long as they exist, even if they are renamed.
    """

    servers: Servers = field(metadata=reads(Servers))
    targets: Targets = field(default_factory=Targets, metadata=reads(Targets))
    columns: ColumnOptions | None = field(
        default=None, metadata=reads(read_columns, ENCODING, ColumnOptions)
    )
    creation: Creation | None = field(
        default=None, metadata=reads(read_creation, CREATE_STREAMS, Creation)
    )
    delivery: DeliveryOptions = field(
        default_factory=DeliveryOptions, metadata=reads(DeliveryOptions)
    )
    bad_records: BadRecordPolicy = option("onBadRecord", BAD_RECORDS, BadRecordPolicy()).field(
        "Reaction to rows that cannot be written: too large; without a stream, or for a stream that"
        " does not exist or has a schema; with headers that are not UTF-8. With columns also a null"
        " where the stream requires a value, or a string that is not UTF-8."
        " `fail` fails the task; `skip` leaves them out, with their number in the log;"
        " `deadletter:STREAM` writes them to that stream in the same transaction, with the headers"
        " `sbp.error` and `sbp.stream`, and without a value that is too large. With columns the"
        " value is the row as JSON. The stream must not have a schema."
    )
    batching: Batching = field(default_factory=Batching, metadata=reads(Batching))
    found: Mapping[str, FoundStream] = field(default_factory=dict)

    @property
    def key_column(self) -> str | None:
        """The column whose value may choose one of several streams for a row."""
        return "key" if self.columns is None else self.columns.routing_column


SINK_OPTIONS: Final = options_of(SinkOptions, side="sink")


def parse_sink_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SinkOptions:
    """Return the sink's options; what Spark itself adds to them is passed over.

    `streaming` is None if it is not known yet whether a batch or a stream is written. Raises
    ConfigurationError with one line per fault.
    """
    # The options of the source import this module.
    from sbp_spark.options.source import SOURCE_OPTIONS

    reader = OptionReader(
        options,
        SINK_OPTIONS,
        streaming=streaming,
        ignored=_KEYS_OF_SPARK,
        others=("source", SOURCE_OPTIONS),
    )
    if is_table_given(options):
        remedy = "remove it; streams are changed by the command `sbp streams`"
        reader.add_fault("table", "is for reading only", remedy)
    found = reader.group(SinkOptions)
    reader.check_faults("sink")
    return found
