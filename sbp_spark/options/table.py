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
        "Streams to read: names or ids, separated by commas. Or give streamsPattern, or path.",
    ),
    OptionSpec(
        "streamsPattern",
        "none",
        "Instead of `streams`: a regular expression (Python's) that the whole name of a stream"
        " matches. A streaming query finds streams that are created while it runs, and reads them"
        " from their first record.",
    ),
    OptionSpec("path", "none", "Instead of `streams`, as in .load('orders,clicks')."),
    OptionSpec(
        "startingOffsets",
        "latest (streaming), earliest (batch)",
        "Where a new query starts in each stream: `earliest`, `latest`, `-1000` (so many records"
        " before the tail, but not before the first), or a JSON object with an offset for every"
        " stream, by name or id (-2 earliest, -1 latest). A restarted query goes on from its"
        " checkpoint. A batch cannot start at the latest offset.",
    ),
    OptionSpec(
        "endingOffsets",
        "none (streaming), latest (batch)",
        "Where reading ends in each stream, exclusive; spelled as startingOffsets, without"
        " earliest. In a batch it lies within the stream. A streaming query goes on until it is"
        " there, then it idles, or is over with Trigger.AvailableNow. There, `latest` and `-1000`"
        " mean the tail as the query first saw it, kept in the checkpoint.",
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
        "With fewer new records there is no micro-batch, for maxTriggerDelay at most. Streaming"
        " only, and not with Trigger.Once and Trigger.AvailableNow.",
    ),
    OptionSpec(
        "maxTriggerDelay",
        "15m (with minRecordsPerTrigger)",
        "How long after the last micro-batch fewer records are taken, too: 500ms, 30s, 15m, 1h.",
    ),
    OptionSpec(
        "failOnDataLoss",
        "true",
        "What happens when records that were to be read are gone: trimmed, or with their stream."
        " `true` fails with an error that names every interval; `false` writes them to the log"
        " (`sbp_spark`) and goes on behind them; `report` also keeps them in the offsets, under"
        " `lost`, so that they are in the query's progress and checkpoint. What is trimmed while a"
        " task reads it is in the log of that task only.",
    ),
    OptionSpec(
        "minPartitions",
        "1",
        "Tasks that read a batch or micro-batch, at least; fewer only if there are fewer records.",
    ),
    OptionSpec(
        "maxRecordsPerPartition",
        "1000000",
        "Most records that one task reads. Longer spans of a stream are split evenly; short ones"
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
        "includeHeaders",
        "false",
        "Whether rows have the column `headers`: true, false. A schema given with .schema(...)"
        " names it itself.",
    ),
    _NETWORK_COMPRESSION,
    _ISOLATION_CLASS,
)

SINK_OPTIONS: Final = (
    _ENDPOINT,
    OptionSpec(
        "stream", "the column `stream`", "Stream to write to, a name or id; overrides the column."
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
