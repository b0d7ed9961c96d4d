"""336 776 flights through SBP streams with Spark: written, read, interrupted, checked.

An `sbp serve` of its own, on a temporary folder; one stream per airline. Spark queries write
the flights of January to October into them, and read them at the same time. The reading query is
stopped wherever it stands, November and December are appended, and the query goes on from its
checkpoint. In the end every record must have been read exactly once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd
from flights import TIME_ZONE, load_flights, plot_delays, save_months, start_spark
from progress import Display, follow, grouped
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from sbp_core.errors import SbpError

RESTART_MONTH: Final = 11
FILES_PER_TRIGGER: Final = 4
RECORDS_PER_TRIGGER: Final = 40_000
TABLE_CARRIERS: Final = 8
EVERY_MAX: Final = 1000
NEXT: Final = """
Next: a server of your own, its data in ./sbp-data
   sbp serve --data-dir ./sbp-data
and in another terminal
   sbp streams create greetings
   echo hello | sbp produce greetings
   sbp consume greetings
then docs/get-started/first-query.md, or notebooks/01_quickstart.ipynb, step by step."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo works: the server it talks to, and the folder of its files."""

    endpoint: str
    folder: Path

    @property
    def incoming(self) -> Path:
        """Parquet files to be written into the streams."""
        return self.folder / "incoming"

    def checkpoint(self, name: str) -> str:
        """Return the checkpoint folder of a query."""
        return str(self.folder / "checkpoints" / name)


def start_writing(spark: SparkSession, place: Place) -> StreamingQuery:
    """Write the flights of all files that are new since the last time into the streams."""
    schema = spark.read.parquet(str(place.incoming)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_TRIGGER)
    records = files.parquet(str(place.incoming)).select(
        sf.concat(sf.lit("flights."), "carrier").alias("stream"),
        sf.concat("carrier", "flight").alias("key"),
        sf.to_json(sf.struct("*")).alias("value"),
        sf.col("time_hour").alias("timestamp"),
    )
    return (
        records.writeStream.format("sbp")
        .option("endpoint", place.endpoint)
        .option("checkpointLocation", place.checkpoint("write"))
        .trigger(availableNow=True)
        .start()
    )


def start_reading(
    spark: SparkSession, place: Place, streams: list[str], *, to_the_end: bool
) -> StreamingQuery:
    """Keep the table `delays` up to date: flights and delays by airline and month.

    The month is that of the event time, the record's timestamp. There is no watermark: the groups
    are few, and an airline with few flights is read far ahead of the others, so that a watermark
    would take the others' flights for late ones and drop them.

    Next to the figures the state keeps a bitmap of the offsets it has seen, so that one that is
    missing and one that came twice cannot make up for each other.
    """
    records = (
        spark.readStream.format("sbp")
        .option("endpoint", place.endpoint)
        .option("streams", ",".join(streams))
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", RECORDS_PER_TRIGGER)
        .load()
    )
    flight = sf.from_json(sf.col("value").cast("string"), "carrier STRING, dep_delay INT")
    month = sf.date_format("timestamp", "yyyy-MM").alias("month")
    flights = records.select("stream", "offset", month, flight.alias("flight"))
    delays = (
        flights.groupBy(
            "stream", "flight.carrier", "month", sf.bitmap_bucket_number("offset").alias("bucket")
        )
        .agg(
            sf.count("*").alias("flights"),
            sf.count("flight.dep_delay").alias("departed"),
            sf.sum("flight.dep_delay").alias("delay"),
            sf.min("offset").alias("first_offset"),
            sf.max("offset").alias("last_offset"),
            sf.bitmap_construct_agg(sf.bitmap_bit_position("offset")).alias("seen"),
        )
        .withColumn("seen", sf.bitmap_count("seen"))
    )
    writer = (
        delays.writeStream.format("memory")
        .queryName("delays")
        .outputMode("complete")
        .option("checkpointLocation", place.checkpoint("read"))
    )
    if to_the_end:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def run(spark: SparkSession, place: Place, flights: pd.DataFrame, display: Display) -> pd.DataFrame:
    """Write and read, stop, append, read on; return the rows of the table `delays`."""
    streams = sorted("flights." + flights["carrier"].unique())
    with Client(place.endpoint) as client:
        client.create_streams([StreamSpec(name) for name in streams])
    display.say(f"2. {len(streams)} streams, one per airline: {streams[0]} ... {streams[-1]}")

    is_late = flights["month"] >= RESTART_MONTH
    display.say(
        f"3. January to October, {grouped((~is_late).sum())} flights: one query writes them,"
        " another reads them"
    )
    save_months(flights[~is_late], place.incoming)
    reading = start_reading(spark, place, streams, to_the_end=False)
    writing = start_writing(spark, place)
    follow(reading, display, lambda: not writing.isActive)
    writing.awaitTermination()
    display.say("4. Written; the reading query is stopped where it stands")

    save_months(flights[is_late], place.incoming)
    start_writing(spark, place).awaitTermination()
    display.say(f"5. November and December appended, {grouped(is_late.sum())} flights; reading on")
    reading = start_reading(spark, place, streams, to_the_end=True)
    follow(reading, display, lambda: False)
    return pd.DataFrame([row.asDict() for row in spark.table("delays").collect()])


def count_records(endpoint: str) -> dict[str, int]:
    """Return how many records the server holds, by stream; all start at offset 0."""
    with Client(endpoint) as client:
        streams = client.list_streams()
        bounds = client.stream_bounds([stream.stream_id for stream in streams])
    return {str(stream.name): at.next_offset for stream, at in zip(streams, bounds, strict=True)}


def find_faults(read: pd.DataFrame, flights: pd.DataFrame, held: dict[str, int]) -> list[str]:
    """Return what is wrong with the rows of the table `delays`, nothing if all is well.

    They are compared with the records that the server holds, by stream, and with what pandas
    computes from the flights.
    """
    faults = []
    columns = {
        "records": ("flights", "sum"),
        "distinct": ("seen", "sum"),
        "first": ("first_offset", "min"),
        "last": ("last_offset", "max"),
    }
    by_stream = read.groupby("stream").agg(**columns)
    for stream, count in held.items():
        wanted = (count, count, 0, count - 1)
        got = tuple(map(int, by_stream.loc[stream])) if stream in by_stream.index else ()
        if got != wanted:
            faults.append(
                f"{stream}: records, distinct offsets, first and last offset are {got},"
                f" not {wanted}"
            )
    wrong = read[read["stream"] != "flights." + read["carrier"]]
    faults += [f"{row.stream} has flights of {row.carrier}" for row in wrong.itertuples()]

    month = flights["time_hour"].dt.tz_convert(TIME_ZONE).dt.strftime("%Y-%m").rename("month")
    wanted = flights.groupby(["carrier", month])["dep_delay"].agg(["size", "count", "sum"])
    got = read.groupby(["carrier", "month"])[["flights", "departed", "delay"]].sum()
    got.columns = wanted.columns
    wanted, got = wanted.astype("int64").align(got.astype("int64"), fill_value=0)
    faults += [
        f"{' '.join(key)}: flights, departures and minutes of delay are"
        f" {tuple(map(int, got.loc[key]))}, not {tuple(map(int, wanted.loc[key]))}"
        for key in wanted.index[(wanted != got).any(axis=1)]
    ]
    return faults


def mean_delays(read: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return the mean delays by carrier and month, and the carriers' flights; biggest first."""
    flights = read.groupby("carrier")["flights"].sum().sort_values(ascending=False)
    sums = read.groupby(["carrier", "month"])[["delay", "departed"]].sum().astype(float)
    means = (sums["delay"] / sums["departed"]).unstack("month")
    return means.loc[flights.index], flights


def print_table(means: pd.DataFrame, flights: pd.Series, display: Display) -> None:
    """Print the mean delays of the biggest airlines."""
    months = [pd.Timestamp(month).strftime("%b") for month in means.columns]
    display.say("\nMean departure delay in minutes, the airlines with most flights")
    display.say("     " + "".join(f"{month:>5}" for month in months) + "    flights")
    for carrier, row in means.head(TABLE_CARRIERS).iterrows():
        cells = "".join("    -" if pd.isna(mean) else f"{round(mean):5}" for mean in row)
        display.say(f"   {carrier}{cells}   {grouped(flights[carrier]):>8}")
    display.say()


def parse_arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description="flights through SBP streams with Spark")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take each Nth flight")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="for the results")
    parser.add_argument("--keep", action="store_true", help="keep the server's data in the output")
    arguments = parser.parse_args()
    if arguments.keep and (arguments.output / "sbp-data").exists():
        parser.error(f"{arguments.output / 'sbp-data'} is kept from earlier: remove it")
    if not 1 <= arguments.every <= EVERY_MAX:
        parser.error(f"--every is {arguments.every}; expected 1 to {EVERY_MAX}")
    return arguments


def conclude(faults: list[str], read: pd.DataFrame, display: Display) -> None:
    """Print the verdict."""
    records = grouped(read["flights"].sum())
    if faults:
        display.say(f"FAILED: of {records} records read, not each was read exactly once:")
        for fault in faults:
            display.say(f"   {fault}")
        return
    groups = len(read.groupby(["carrier", "month"]))
    display.say(f"PASSED: all {records} records were read exactly once, across the restart:")
    display.say(
        f"   offsets   0, 1, 2 ... in each of {read['stream'].nunique()} streams, each once"
    )
    display.say(f"   figures   of {groups} airline months, equal to what pandas computes")


def demonstrate(arguments: argparse.Namespace, display: Display, stack: ExitStack) -> int:
    """Run the demo, its resources on `stack`; return the exit status."""
    output: Path = arguments.output
    picture, log, data = output / "delays.png", output / "spark.log", output / "sbp-data"
    flights = load_flights().iloc[:: arguments.every]
    cluster = stack.enter_context(LocalCluster(data if arguments.keep else None))
    display.say(f"1. `sbp serve` runs at {cluster.endpoint}; Spark starts, its log is {log}")
    spark = start_spark(log)
    stack.callback(spark.stop)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbp-demo-")))
    read = run(spark, Place(cluster.endpoint, folder), flights, display)
    faults = find_faults(read, flights, count_records(cluster.endpoint))
    means, counts = mean_delays(read)
    print_table(means, counts, display)
    plot_delays(means, counts, picture, appended=f"2013-{RESTART_MONTH}")
    conclude(faults, read, display)
    display.say(f"   picture   {picture}")
    if arguments.keep:
        display.say(f"   kept      sbp serve --data-dir {data}")
    return 1 if faults else 0


def main() -> int:
    """Run the demo; return the exit status."""
    arguments = parse_arguments()
    display = Display()
    started = time.monotonic()
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            status = demonstrate(arguments, display, stack)
    except (SbpError, PySparkException) as error:
        display.say(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        display.say("interrupted")
        return 130
    display.say(f"   took      {time.monotonic() - started:.0f} s")
    display.say(NEXT)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
