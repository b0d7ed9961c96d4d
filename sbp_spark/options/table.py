"""Every option with its default and its meaning: what is accepted, and what is documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option as the documentation shows it; `default` is None where the option is required."""

    name: str
    default: str | None
    meaning: str


_ENDPOINT: Final = OptionSpec(
    "endpoint", None, "Placement driver to ask, host:port; an IPv6 address stands in brackets."
)
_NETWORK_COMPRESSION: Final = OptionSpec(
    "networkCompression",
    "none",
    "How records travel between Spark's workers and the range servers: none, or zstd, which spares"
    " a slow network and costs processor time. A server that knows no compression gets none.",
)
_ISOLATION_CLASS: Final = OptionSpec(
    "isolationClass",
    "none",
    "Name of a class of readers, such as backfill: a range server divides its reads fairly between"
    " classes, so that none of them waits behind the backlog of another.",
)

SOURCE_OPTIONS: Final = (
    _ENDPOINT,
    OptionSpec(
        "streams",
        None,
        "Streams to read: names or ids, separated by commas. Or give streamsPattern, or path. A"
        " query finds each name once, when it starts: it reads on a stream that is renamed, also if"
        " another one gets its name. When it is started again, give the new name, or the id; the"
        " checkpoint knows streams by their ids.",
    ),
    OptionSpec(
        "streamsPattern",
        "none",
        "Instead of `streams`: a regular expression (Python's) that the whole name of a stream"
        " matches. A streaming query finds streams that are created while it runs, and reads them"
        " from their first record. One whose new name does not match is no longer read, which is"
        " data loss to failOnDataLoss.",
    ),
    OptionSpec("path", "none", "Instead of `streams`, as in .load('orders,clicks')."),
    OptionSpec(
        "table",
        "none",
        "Instead of records, what the placement driver knows: `streams`, `ranges` or `cursors` (of"
        " consumer groups); null is what a range server that is away would have to tell. In a batch"
        " only, and with no option beside it but endpoint.",
    ),
    OptionSpec(
        "startingOffsets",
        "latest (streaming), earliest (batch)",
        "Where a new query starts in each stream: `earliest`, `latest`, `-1000` (so many records"
        " before the tail, but not before the first), `group:NAME` (where a consumer group reads"
        " next), or a JSON object with an offset for every stream, by name or id (-2 earliest, -1"
        ' latest, or "group:NAME"). A restarted query goes on from its checkpoint; a stream that'
        " was added to `streams` starts as in a new query, unless another one was deleted: then it"
        " may be that one, created again, and is read from its first record. A batch cannot"
        " start at the latest offset. What a group has never read is read from the first record,"
        " also by a group that is new; records behind its cursor that were trimmed meanwhile are"
        " lost, see `failOnDataLoss`.",
    ),
    OptionSpec(
        "startingTimestamp",
        "none",
        "Instead of `startingOffsets`: start at the first record, in the order of offsets, that was"
        " appended at this time or later, so none of them is missed. ISO 8601, such as"
        " `2026-01-31T09:30` (UTC) or `2026-01-31T09:30+01:00`; milliseconds since 1970, though 8"
        " digits are a date, `20260131`; or `-10m`, so long before now (ms, s, m, h, d). Records"
        " are appended at the time that their range server's clock shows, in ms; `now` is what the"
        " driver's clock shows when a new query plans its first micro-batch, or when a batch is"
        " planned; for a stream that waits for a range server then (`maxRangeStall`), when the"
        " query first missed that.",
    ),
    OptionSpec(
        "startingOffsetsByTimestamp",
        "none",
        "The same as a JSON object with a time for every stream, by name or id:"
        ' `{"orders": "2026-01-31", "17": 1769817600000, "clicks": "-10m"}`.',
    ),
    OptionSpec(
        "startingOffsetsByTimestampStrategy",
        "error (latest for times like -10m)",
        "What a starting time means for a stream that has no record of that time or later: `error`,"
        " or `latest`, the tail as it is then; what comes later is read, whatever its time is. A"
        " stream that had to wait for a range server (`maxRangeStall`) while others were read takes"
        " `latest`, with a warning in the log, as a query that runs is not to fail for that.",
    ),
    OptionSpec(
        "endingOffsets",
        "none (streaming), latest (batch)",
        "Where reading ends in each stream, exclusive; spelled as startingOffsets, without"
        " earliest. In a batch it lies within the stream. A streaming query goes on until it is"
        " there, then it idles, or is over with Trigger.AvailableNow. There, `latest` and `-1000`"
        " mean the tail as the query first saw it, kept in the checkpoint: that counts, also"
        " if the query is started again with another one of the two.",
    ),
    OptionSpec(
        "endingTimestamp",
        "none",
        "Instead of `endingOffsets`: end at the first record, in the order of offsets, that was"
        " appended at this time or later, exclusive. Times are spelled as in `startingTimestamp`."
        " Where there is no such record, a batch ends at the tail. A streaming query goes on until"
        " there is one, whatever time it is: what is appended next may still be from before. That"
        " end, and what `-10m` meant at the start, is kept in the checkpoint; `-20m` after a"
        " restart changes nothing then. What lies behind the"
        " end is not read, even if a server's clock, set back or behind that of the server before,"
        " gave it an earlier time.",
    ),
    OptionSpec(
        "endingOffsetsByTimestamp",
        "none",
        "The same as a JSON object with a time for every stream, by name or id.",
    ),
    OptionSpec(
        "maxRecordsPerTrigger",
        "unlimited",
        "Upper bound on the records of one micro-batch over all streams, shared in proportion to"
        " their backlogs; no stream starves. Streaming only, and not with Trigger.Once.",
    ),
    OptionSpec(
        "maxBytesPerTrigger",
        "unlimited",
        "The same for octets of records as they are stored, such as 64m. Servers do not tell the"
        " size of records that were not fetched, so it is an estimate: of each stream one record"
        " batch, at which reading goes on, is sampled again and again. It is exact where the"
        " records of a stream are alike. One record is always taken, however long it is.",
    ),
    OptionSpec(
        "minRecordsPerTrigger",
        "none",
        "With fewer new records there is no micro-batch, for maxTriggerDelay at most, unless other"
        " limits let no more into one. Streaming only, and not with Trigger.Once and"
        " Trigger.AvailableNow.",
    ),
    OptionSpec(
        "maxTriggerDelay",
        "15m (with minRecordsPerTrigger)",
        "How long after the last micro-batch fewer records are taken, too: 500ms, 30s, 15m, 1h.",
    ),
    OptionSpec(
        "targetBatchDuration",
        "none",
        "How long a micro-batch should take, such as 10s, with all that the query does: each takes"
        " as many records as fit, judged by how long those before it took. The first one takes"
        " 10000 at most, none is held below 1000, and maxRecordsPerTrigger and maxBytesPerTrigger"
        " hold, too. Time in which Spark waits for its trigger does not count; but how long a"
        " micro-batch took that was over before the next trigger nobody can tell a source, so a"
        " trigger interval above this duration counts as the duration. Where micro-batches take"
        " longer whatever they read, that is logged, and they get as many records as are worth"
        " the time. Streaming only, and not with Trigger.Once.",
    ),
    OptionSpec(
        "maxRangeStall",
        "none",
        "How long a range server may be away, such as 30s, before micro-batches leave out what only"
        " it can serve. The other streams then go on, and its own ones catch up from where they"
        " were when it is back. Each stall is in the log (`sbp_spark`), and the streams are in the"
        " query's progress, under `stalled`, with the time in ms since when. A stream whose start"
        " cannot be found out for that begins, by startingOffsets, when its server is back. A run"
        " with Trigger.AvailableNow ends without what is stalled; the next one reads it. A"
        " micro-batch that was planned is never changed: it is read, or fails. Without the option a"
        " query waits for a minute, and fails. Streaming only.",
    ),
    OptionSpec(
        "availableNowEnd",
        "kept",
        "Where a run with Trigger.AvailableNow ends if the run before it was cut short. `kept`:"
        " where that one was to end, which is in the checkpoint; the run after it reads what has"
        " come since, and a line in the log (`sbp_spark`) says so. `latest`: at the tails as they"
        " are when it starts, as any other run. Streaming only.",
    ),
    OptionSpec(
        "failOnDataLoss",
        "true",
        "What happens when records that were to be read are gone (trimmed, or with their stream),"
        " or cannot be decoded."
        " `true` fails with an error that names every interval, also where a stream is no longer"
        " selected that the query has read; `false` writes them to the log"
        " (`sbp_spark`) and goes on behind them; `report` also keeps them in the offsets, under"
        " `lost`, so that they are in the query's progress and checkpoint. What is trimmed while a"
        " task reads it is in the log of that task only. A stream that is no longer selected but"
        " exists is not lost: its position stays in the checkpoint, under `left_out`, and it is"
        " read on from there when it is selected again. Where the placement driver's data directory"
        " was put back to an older copy, `false` and `report` only log it: the query goes on from"
        " its offsets, and which records below them are others now is not known.",
    ),
    OptionSpec(
        "group",
        "none",
        "Name of a consumer group whose cursors follow the query, for `sbp lag` and for"
        " `startingOffsets` of other queries: the placement driver is told of a micro-batch when"
        " the next one is looked for. It is told of the last one when the query is started again,"
        " if that did not come any more. The query itself goes on from its checkpoint, and never"
        " fails or waits for more than a second because the cursors cannot be set: that is written"
        " to the log (`sbp_spark`), and tried again. Streaming only.",
    ),
    OptionSpec(
        "trimOnCommit",
        "false",
        "Whether records are trimmed, for good, once they are not needed any more: those of"
        " micro-batches that Spark has committed, when it has begun the next one, so the last"
        " micro-batch can always be repeated. All that lies before them goes, too, also what lay"
        " before the query's start. Let no other query read these streams: a queue has one"
        " consumer. Failures are treated as those of `group`. Streaming only.",
    ),
    OptionSpec(
        "minPartitions",
        "1",
        "Tasks that read a batch or micro-batch, at least; fewer only if there are fewer records."
        " At most 10000.",
    ),
    OptionSpec(
        "maxRecordsPerPartition",
        "1000000",
        "Most records that one task reads, more only where that would take over"
        " 10000 tasks. Longer spans of a stream are split evenly; short ones"
        " on the same range server share a task, whose requests serve many streams at once.",
    ),
    OptionSpec(
        "maxBytesPerPartition",
        "unlimited",
        "The same for octets, such as 128m; estimated as for maxBytesPerTrigger.",
    ),
    OptionSpec(
        "fetchBufferBytes",
        "16m",
        "Octets that a task holds of what it has asked for and not decoded yet, about: half of it,"
        " and 8m at most, is asked for at a time, while the rest is decoded. More of it helps where"
        " range servers are far away.",
    ),
    OptionSpec(
        "encoding",
        "auto",
        "What records are read as: `rows` (key, value, headers, timestamp), `columns` (those of the"
        " schemas that typed streams have), or `auto`: columns if any of the streams has a schema"
        " when the query starts, else rows. Beside `streamsPattern`, `rows` and `columns` select:"
        " of the streams that match only those without a schema are read, or only those with one,"
        " also of those that come while a query runs. So no stream of the other kind can end it, as"
        " it can with `auto`. Of several streams the columns of all are read; what a stream lacks"
        " is null. A query keeps the columns it started with: columns that are new are seen by the"
        " next query, or after a restart, and where a type was widened meanwhile the query fails,"
        " and goes on when it is loaded and started again.",
    ),
    OptionSpec(
        "includeHeaders",
        "false",
        "Whether rows have the column `headers`: true, false. A schema given with .schema(...)"
        " names it itself. Not with columns.",
    ),
    OptionSpec(
        "includeMetadata",
        "false",
        "Whether there is the column `_metadata` behind those of typed streams: true, false. It is"
        " a struct of stream, stream_id, range_index, offset and timestamp; the time is that of the"
        " column that the writer named in timestampColumn, else that of the record batch. Not with"
        " rows, which have these columns of themselves.",
    ),
    _NETWORK_COMPRESSION,
    _ISOLATION_CLASS,
    OptionSpec(
        "localReads",
        "true",
        "Whether tasks on the machine of a range server read large record batches from its files,"
        " checked by their checksums, without a way through the server: true, false."
        " They do where they may open the files, so where they run as the same user; where they may"
        " not, the server reads for them.",
    ),
)

SINK_OPTIONS: Final = (
    _ENDPOINT,
    OptionSpec(
        "stream",
        "the column `stream`",
        "Stream to write to, a name or id; overrides the columns `stream` and `stream_id`. Where"
        " the column `stream` is null or missing, `stream_id` tells the stream.",
    ),
    OptionSpec(
        "streams",
        "none",
        "Instead of `stream`: several streams, separated by commas, over which the rows are spread"
        " as `routing` says.",
    ),
    OptionSpec(
        "routing",
        "key (with streams)",
        "How a row gets one of `streams`. `key`: the stream at place crc32(key) mod their number,"
        " counted from 0, as Spark's function crc32 computes it, so one key always gets the same"
        " stream while the list stays as it is; rows without a key go round robin. `round-robin`:"
        " each task goes from stream to stream, row by row. Columns have a key if `routingColumn`"
        " names one, and go round robin otherwise.",
    ),
    OptionSpec(
        "encoding",
        "rows",
        "What is written. `rows`: plain records, from the columns key, value, headers and"
        " timestamp. `columns`: every column of the DataFrame, with its type, to typed streams,"
        " which `stream` or `streams` name; only the struct `_metadata` that a source adds, or some"
        " of its fields, is left out. The first write gives a stream its schema; a column which"
        " Spark knows to have no nulls becomes required. Later ones have to fit, by the names"
        " of columns: columns that may be null may be missing, types may be narrower, the order is"
        " any. Streams with plain records take no columns, and the other way round.",
    ),
    OptionSpec(
        "mergeSchema",
        "false",
        "With encoding=columns: whether the schemas of streams may grow, so that new columns are"
        " added, which are null in what was written before, types widen (integers, floats, decimals"
        " to larger ones), and required columns may be null. Nothing is ever taken away. Without it"
        " such a DataFrame is refused, with what differs; but a column that may be null where the"
        " stream requires it is accepted, and a null in it is a bad record.",
    ),
    OptionSpec(
        "routingColumn",
        "none",
        "With encoding=columns and `streams`: the column whose value is the key of `routing`, as"
        " text (cast to string) or octets. A string, binary, integer, boolean or date, of dates"
        " those of the years 0 to 9999.",
    ),
    OptionSpec(
        "timestampColumn",
        "none",
        "With encoding=columns: the column, a timestamp, that tells when a row's event was; readers"
        " get it as the record's timestamp. Without it that is the time of writing.",
    ),
    OptionSpec(
        "createStreams",
        "false",
        "Whether streams that an option or a column names, and that do not exist, are created. A"
        " write finds those that options name when it is planned, a streaming query with the option"
        " checkpointLocation at its first micro-batch in a Spark session: one that is renamed then"
        " is written on, and no other is created under the old name. Name it by its new name, or"
        " its id, in another session.",
    ),
    OptionSpec("createReplicas", "1", "Replicas of a stream that is created."),
    OptionSpec(
        "createRetentionPeriod",
        "for ever",
        "How long a stream that is created keeps records, such as 7d.",
    ),
    OptionSpec(
        "createRetentionBytes",
        "unlimited",
        "What each range server keeps of a stream that is created, such as 10g.",
    ),
    OptionSpec(
        "delivery",
        "exactly-once",
        "`exactly-once`: rows are staged, and become readable when Spark commits the micro-batch or"
        " the write as a whole: each row once, however often tasks, commits or the query are"
        " repeated, also in other partitions. Of several streams all or nothing, though not at the"
        " same instant. At most 20000 parts, one for each stream of each task, are committed"
        ' together: beyond that use .repartition("stream"). A new checkpoint is a new query.'
        " `at-least-once`: rows are readable as soon as they are appended, and what a task wrote"
        " before it failed stays; for servers without transactions, such as those that speak"
        " elasticstream-2023-04.",
    ),
    OptionSpec(
        "onReplayMismatch",
        "warn",
        "What happens when a micro-batch that was committed before comes again with other rows:"
        " what was committed first stays in any case. `warn` writes that to the log (`sbp_spark`),"
        " `fail` fails the query. Either the query does not give the same rows each time, or two"
        " queries run on copies of one checkpoint. The same happens to a batch that was committed"
        " by another version of this package, or another producer, in a way that cannot be"
        " compared. A batch with rows whose number is below that of a committed one, and of which"
        " no decision is known, fails the query in any case: its rows may never have been written."
        " For a batch write beside txnAppId.",
    ),
    OptionSpec(
        "txnAppId",
        "none",
        "With txnVersion: name of an application that numbers its batch writes, so that one that is"
        " done again, as by foreachBatch, writes nothing. Up to 64 of A-Z a-z 0-9 . _ -, not"
        " beginning with once-. Without the two each batch write is atomic, and writes its rows"
        " again when it is done again.",
    ),
    OptionSpec(
        "txnVersion",
        "none",
        "Number of the write, such as foreachBatch's batch id; one that is not above that of the"
        " last write with this txnAppId was done before. Writes of one DataFrame to several places"
        " in one foreachBatch need a txnAppId each.",
    ),
    OptionSpec(
        "onBadRecord",
        "fail",
        "What happens to rows that cannot be written: too large, without a stream, of one that"
        " does not exist or has a schema, with headers that are no UTF-8; of columns, with a null"
        " that the stream does not take, or a text that is no UTF-8; in a record sequence, without"
        " a value or that of a header, or with a key or header that is no UTF-8. `fail` fails the"
        " task; `skip` leaves them out, with their number in the log; `deadletter:STREAM` writes"
        " them to that"
        " stream in the same transaction, with the headers `sbp.error` and `sbp.stream`, and"
        " without a value that is too large. Of columns the value is the row as JSON; the stream"
        " has no schema.",
    ),
    OptionSpec(
        "batchBytes",
        "1m",
        "Octets of a record batch before compression, about; rows of one stream are put together"
        " until there are so many, or no more.",
    ),
    OptionSpec(
        "batchRecords",
        "1000000",
        "Most records of a record batch. 1 for data nodes of ElasticStream whose ranges are sealed,"
        " which hides records of larger batches.",
    ),
    OptionSpec(
        "lingerDuration",
        "unlimited",
        "How long rows wait for others, such as 1s, before their record batch is sent; looked at"
        " when more rows come. Without it they wait until it is full or the task ends.",
    ),
    OptionSpec(
        "batchCompression",
        "none",
        "Compression of record batches, from here over the servers' disks to the readers: none, lz4"
        " or zstd. Record sequences, for servers that speak elasticstream-2023-04, have none.",
    ),
    OptionSpec(
        "truncate",
        "false",
        "What mode('overwrite') needs: when the new rows can be read, what was there before the"
        " commit is trimmed from the streams that `stream` or `streams` name, or that the rows are"
        " for; that of dead letters is left alone. So a write that fails before it is committed"
        " loses nothing, and for a moment readers see both. If the new rows cannot be read within a"
        " minute, because a server is away, or some of them are lost (`sbp txns give-up`), nothing"
        " is trimmed and the write fails. Not with txnAppId.",
    ),
    _NETWORK_COMPRESSION,
)

KAFKA_NAMES: Final = {
    "kafka.bootstrap.servers": "endpoint",
    "subscribe": "streams",
    "subscribePattern": "streamsPattern",
    "topic": "stream",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minRecordsPerTrigger",
}
"""What options of Spark's Kafka connector are called here, where the name differs."""
