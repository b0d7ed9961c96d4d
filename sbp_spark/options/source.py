"""Options of the source, and of a read of metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from sbp_core.client import StreamInfo
from sbp_core.limits import MIB
from sbp_spark.filtering.condition import Condition
from sbp_spark.filtering.parser import POSSIBLE, RefusedError, parse_condition
from sbp_spark.options.declaring import (
    COLUMN_NAMES,
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
    word,
)
from sbp_spark.options.endpoints import CatalogOptions, Servers
from sbp_spark.options.read_positions import (
    ENDS,
    GROUP,
    STARTS,
    STRATEGY,
    Earliest,
    Latest,
    Positions,
    check_order,
    read_ending,
    read_starting,
)
from sbp_spark.options.sink import SINK_OPTIONS
from sbp_spark.options.stream_selection import SELECTIONS, FoundStream, Selection, read_selection

PARTITIONS_MAX: Final = 10_000
"""Above this number input partitions get larger instead: Spark's driver keeps each in memory, and
a server may claim that a stream has any number of records."""
FETCH_BUFFER_BYTES_DEFAULT: Final = 16 * MIB

_TRIGGERS: Final = Only(True, "is given in a batch read, which has no triggers")
_COMMITS: Final = Only(True, "is given in a batch read, which commits nothing")


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much a micro-batch over all streams takes, and how long it waits; None is no bound.

    With fewer than `records_min` records there is none, unless the last one was `delay_ms_max` ago.
    It takes about as many as are read and processed in `target_ms`.
    Servers that have been down for `stall_ms_max` are not waited for any longer.
    """

    records_max: int | None = option(
        "maxRecordsPerTrigger",
        COUNT,
        None,
        unset="unlimited",
        only=_TRIGGERS,
        kafka="maxOffsetsPerTrigger",
    ).field(
        "Upper bound on the records of one micro-batch over all streams, shared in proportion to"
        " their backlogs; no stream starves. Not with Trigger.Once."
    )
    bytes_max: int | None = option(
        "maxBytesPerTrigger", SIZE, None, unset="unlimited", only=_TRIGGERS
    ).field(
        "The same for bytes of records as they are stored, such as 64m. It is an estimate, of the"
        " bytes that servers report for a stream and the number of its records: exact where these"
        " are alike. One record is always read, however long it is."
    )
    records_min: int | None = option(
        "minRecordsPerTrigger",
        COUNT,
        None,
        unset="none",
        only=_TRIGGERS,
        kafka="minOffsetsPerTrigger",
    ).field(
        "With fewer new records there is no micro-batch, for maxTriggerDelay at most, unless other"
        " limits keep it smaller. Not with Trigger.Once and Trigger.AvailableNow."
    )
    delay_ms_max: int = option(
        "maxTriggerDelay", DURATION, 15 * 60 * 1000, needs="minRecordsPerTrigger", only=_TRIGGERS
    ).field("How long after the last micro-batch fewer records are read, too: 500ms, 30s, 15m, 1h.")
    target_ms: int | None = option(
        "targetBatchDuration", DURATION, None, unset="none", only=_TRIGGERS
    ).field(
        "How long a micro-batch should take, such as 10s, with all that the query does: each takes"
        " as many records as fit, judged by how long those before it took. The first one takes"
        " 10000 at most, none is held below 1000, and maxRecordsPerTrigger and maxBytesPerTrigger"
        " hold, too. Time in which Spark waits for its trigger does not count; but Spark"
        " does not report how long a micro-batch took that ended before the next trigger, so a"
        " trigger interval above this duration counts as the duration. If micro-batches take"
        " longer whatever they read, that is logged, and they get as many records as are worth the"
        " time. Not with Trigger.Once."
    )
    stall_ms_max: int | None = option(
        "maxRangeStall", DURATION, None, unset="none", only=_TRIGGERS
    ).field(
        "How long a range server may be down, such as 30s, before micro-batches leave out what only"
        " it can serve. The other streams are then read on, and its own streams catch up when it is"
        " back. Each stall is in the log (`sbp_spark`), and the streams are in the query's"
        " progress, under `stalled`, with the time in ms since when. A stream whose start cannot be"
        " determined without that server starts, by startingOffsets, when it is back. A run with"
        " Trigger.AvailableNow ends without what is stalled; the next one reads it. A micro-batch"
        " that was planned is never changed: it is read, or fails. Without the option a query that"
        " runs waits for a minute, and then does the same; one that starts fails after a minute, as"
        " does a run with Trigger.AvailableNow."
    )

    def check_options(self, reader: OptionReader) -> None:
        """Add a fault for limits that contradict each other."""
        if (
            self.records_max is not None
            and self.records_min is not None
            and self.records_min > self.records_max
        ):
            wrong = f"is {self.records_min}, above maxRecordsPerTrigger, {self.records_max}"
            reader.add_fault("minRecordsPerTrigger", wrong, "lower the one, or raise the other")


class OnDataLoss(Enum):
    """Values of failOnDataLoss."""

    FAIL = "true"
    SKIP = "false"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Progress that the source writes to servers once Spark has committed a micro-batch.

    The cursors of the group are set, and the records that were read are trimmed.
    """

    group: str | None = option(
        "group",
        GROUP,
        None,
        unset="none",
        only=_COMMITS._replace(
            remedy='remove it; startingOffsets="group:NAME" reads from where a group is'
        ),
    ).field(
        "Name of a consumer group whose cursors follow the query, for `sbp lag` and for"
        " `startingOffsets` of other queries: they are committed for a micro-batch when Spark"
        " asks for the next one; for the last one when the query is started again. The query itself"
        " continues from its checkpoint. It never fails, or waits for more than a second, because"
        " the cursors cannot be committed: that is logged (`sbp_spark`) and retried."
    )
    is_trimming: bool = option("trimOnCommit", FLAG, False, only=_COMMITS).field(
        "Whether records are trimmed, permanently, once they are no longer needed: the records of"
        " a micro-batch that Spark has committed, when Spark has begun the next micro-batch, so the"
        " last one can always be repeated. All earlier records are trimmed too, also the records"
        " before the query's start. No other query may read these streams: a queue has one"
        " consumer. Failures are handled as failures of `group`."
    )


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """Bounds of one input partition, the least number of them, and the prefetched bytes."""

    records_max: int = option("maxRecordsPerPartition", COUNT, 1_000_000).field(
        "Most records that one task reads, more only where that would take over"
        f" {PARTITIONS_MAX} tasks. Tasks read about the same amount: long spans of a stream are"
        " split, and short ones on the same range server share a task, whose requests serve many"
        " streams at once. The tasks of a stream are numbered in the order of its offsets."
    )
    bytes_max: int | None = option(
        "maxBytesPerPartition", SIZE, None, unset="unlimited (streaming), 128m (batch)"
    ).field(
        "The same for bytes as they are stored, such as 128m; estimated as for maxBytesPerTrigger."
        " So a micro-batch that is repeated may be cut in other places; its rows are the same."
    )
    count_min: int | None = option(
        "minPartitions",
        at_most(
            PARTITIONS_MAX,
            COUNT,
            f"{PARTITIONS_MAX} at most, which Spark's driver can keep in memory",
        ),
        None,
        unset="1 (streaming), the cores of the driver if each task gets 4m (batch)",
    ).field(
        "Tasks that read a batch or micro-batch, at least; fewer only if there are fewer records."
        f" At most {PARTITIONS_MAX}."
    )
    buffer_bytes: int = option("fetchBufferBytes", SIZE, FETCH_BUFFER_BYTES_DEFAULT).field(
        "Approximate bytes that a task has requested and not decoded yet: half of it, at most 8m,"
        " is requested at a time, while the rest is decoded. A larger value helps if the network to"
        " the range servers has a high latency."
    )


def _parse_where(given: Given) -> Condition | None:
    try:
        return parse_condition(given.text)
    except RefusedError as error:
        given.refuse(POSSIBLE, str(error))
        return None


_WHERE: Final[Kind[Condition | None]] = Kind(_parse_where)


class SourceEncoding(Enum):
    """Values of the option `encoding` of a source; AUTO: columns if a stream has a schema."""

    AUTO = "auto"
    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class Contents:
    """The columns of a source: headers belong to rows only, metadata to columns only."""

    encoding: SourceEncoding = option("encoding", word(SourceEncoding), SourceEncoding.AUTO).field(
        "Form in which records are read: `rows` (key, value, headers, timestamp), `columns` (those"
        " of the schemas that typed streams have), or `auto`: columns if any of the streams has a"
        " schema when the query starts, else rows. Beside `streamsPattern`, `rows` reads only"
        " matching streams without a schema, and `columns` only matching streams with a schema,"
        " also if they are created while a query runs. So no stream of the other kind can end the"
        " query, as it can with `auto`. A query reads the columns of all its streams; a column that"
        " a stream lacks is null. A query keeps the columns it started with: columns that are"
        " new are seen by the next query, or after a restart, and if a type was widened since, the"
        " query fails, and continues when it is loaded and started again."
    )
    columns: tuple[str, ...] | None = option("columns", COLUMN_NAMES, None, unset="all").field(
        "Columns to read, such as `id,place.city`; a dot leads into a struct, or into the structs"
        " of an array. Others are not sent by range servers, nor read from their files. A schema"
        " given with .schema(...) does the same, also for names with a comma or a dot in them."
    )
    where: Condition | None = option("where", _WHERE, None, unset="all rows").field(
        "Rows to read, as a condition of Spark SQL, such as `price > 100 and country = 'DE'`: the"
        " same rows as `df.where` would leave. Batches of typed streams whose statistics"
        " (`statsColumns` of the sink) show that no row matches are not sent by range servers, nor"
        " read from their files. Limits and partitions count the records before it,"
        " and so do offsets, checkpoints and lags. A condition may name columns that the query does"
        " not have. Possible are comparisons of columns with values, in, between, is null,"
        " like 'prefix%', and, or and not."
    )
    include_headers: bool = option("includeHeaders", FLAG, False).field(
        "Whether rows have the column `headers`: true, false. A schema given with .schema(...)"
        " names it itself. Not with columns."
    )
    include_metadata: bool = option("includeMetadata", FLAG, False).field(
        "Whether the columns of typed streams are followed by the column `_metadata`: true, false."
        " It is a struct of stream, stream_id, range_index, offset and timestamp. The timestamp is"
        " in the column that the writer named in timestampColumn, or else is the time of the record"
        " batch. Not with rows, which have these columns of themselves."
    )

    def check_options(self, reader: OptionReader) -> None:
        """Add a fault for options that do not apply to the encoding."""
        if self.include_headers and self.encoding is SourceEncoding.COLUMNS:
            wrong = "is given with encoding=columns, and columns have no headers"
            reader.add_fault("includeHeaders", wrong, "keep one")
        if self.include_metadata and self.encoding is SourceEncoding.ROWS:
            wrong = "is given with encoding=rows, which have these columns of themselves"
            reader.add_fault("includeMetadata", wrong, "keep one")
        if self.include_headers and self.columns is not None:
            reader.add_fault("includeHeaders", "is given beside columns", "name headers in columns")
        is_auto = self.encoding is SourceEncoding.AUTO
        if is_auto and self.include_headers and self.include_metadata:
            wrong = "is given beside includeHeaders: it is for columns, includeHeaders for rows"
            reader.add_fault("includeMetadata", wrong, "keep one")


_FROM_EARLIEST: Final = Positions(Earliest())
_FROM_LATEST: Final = Positions(Latest())


def _read_starting(reader: OptionReader) -> Positions:
    default = _FROM_EARLIEST if reader.streaming is False else _FROM_LATEST
    return read_starting(reader) or default


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a source.

    Without `ending` a batch ends at the tail, and a stream never.
    """

    servers: Servers = field(metadata=reads(Servers))
    selection: Selection = field(metadata=reads(read_selection, *SELECTIONS))
    starting: Positions = field(metadata=reads(_read_starting, *STARTS, STRATEGY))
    ending: Positions | None = field(metadata=reads(read_ending, *ENDS))
    limits: TriggerLimits = field(metadata=reads(TriggerLimits))
    on_data_loss: OnDataLoss = option("failOnDataLoss", word(OnDataLoss), OnDataLoss.FAIL).field(
        "Reaction to records that were to be read and are lost (trimmed, or deleted with their"
        " stream), or cannot be decoded. `true` fails with an error that names every interval, also"
        " if a stream that the query has read is no longer selected; `false` writes them to the log"
        " (`sbp_spark`) and continues after them; `report` also keeps them in the offsets, under"
        " `lost`, so that they are in the query's progress and checkpoint. Records that are trimmed"
        " while a task reads them are in the log of that task only. A stream that is no longer"
        " selected but exists is not lost: its position stays in the checkpoint, under `left_out`,"
        " and it is read on from there when it is selected again. If the placement driver's data"
        " directory was restored from an older copy, `false` and `report` only log it: the query"
        " continues from its offsets, and it is not known which records below them have changed."
    )
    commits: CommitOptions = field(default_factory=CommitOptions, metadata=reads(CommitOptions))
    partitions: PartitionLimits = field(
        default_factory=PartitionLimits, metadata=reads(PartitionLimits)
    )
    contents: Contents = field(default_factory=Contents, metadata=reads(Contents))

    def check_options(self, reader: OptionReader) -> None:
        """Note ends that lie before their starts, where both are known."""
        is_start_known = reader.streaming is not None or self.starting is not _FROM_LATEST
        if self.ending is not None and is_start_known:
            check_order(reader, self.starting, self.ending)

    def knowing(self, infos: Iterable[StreamInfo]) -> SourceOptions:
        """Return the options, in which the names of these streams go on to mean them."""
        found = {info.name: FoundStream.of(info) for info in infos if info.name is not None}
        starting = replace(self.starting, found=found)
        ending = None if self.ending is None else replace(self.ending, found=found)
        return replace(self, starting=starting, ending=ending)


SOURCE_OPTIONS: Final = options_of(SourceOptions, CatalogOptions, side="source")


def parse_source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Return the source's options; `streaming` is None if that is not known.

    Then only faults of both readStream and read count. Raises ConfigurationError with one line
    per fault.
    """
    reader = OptionReader(
        options, SOURCE_OPTIONS, streaming=streaming, others=("sink", SINK_OPTIONS)
    )
    if reader.is_given("table"):
        reader.add_fault("table", "is for batches only", "use spark.read, or remove it")
    found = reader.group(SourceOptions)
    reader.check_faults("source")
    return found


def parse_catalog_options(options: Mapping[str, str]) -> CatalogOptions:
    """Return the options of a read of metadata, `table` among them; those about records are faults.

    Raises ConfigurationError with one line per fault.
    """
    reader = OptionReader(options, SOURCE_OPTIONS)
    found = reader.group(CatalogOptions)
    of_tables = options_of(CatalogOptions)
    about_records = tuple(each for each in SOURCE_OPTIONS if each not in of_tables)
    reader.refuse_given(about_records, "is given beside table, and is about records")
    reader.check_faults("tables")
    return found
