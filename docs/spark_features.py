"""The page of Spark's features: which work with the data source, and why the others cannot.

Each row names the test that tries it; `tests/unit/test_spark_features_page.py` looks for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from status_codes import NOTICE, table


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of Spark. `test` is a file below `tests` and the name of a function in it.

    `note` has what to know or, if the feature does not work, the reason and the way out.
    """

    name: str
    works: bool
    note: str
    test: str


_FEATURES: Final[Mapping[str, Sequence[Feature]]] = {
    "Reading": [
        Feature(
            "batch read, a snapshot",
            True,
            "the tails are those of the first action",
            "spark/test_spark_round_trip.py::test_a_batch_is_a_snapshot",
        ),
        Feature(
            "columns chosen by `.schema(...)`",
            True,
            "",
            "spark/test_spark_round_trip.py::test_only_the_columns_of_a_schema",
        ),
        Feature(
            "rows chosen by a condition",
            True,
            "the option [`where`](../how-to/read-some-rows.md); in streaming, too",
            "spark/test_spark_where.py::test_rows_and_few_columns_of_a_typed_stream",
        ),
        Feature(
            "a schema that does not fit is refused",
            True,
            "at the first action of a batch, and at the start of a query: until then Spark does not"
            " give the schema to the source",
            "spark/test_spark_messages.py::test_another_schema",
        ),
        Feature(
            "filter push-down",
            False,
            "Spark keeps one plan for a `load()`, with the filters of the last query, so rows would"
            " be missing in others. Use `where`, `startingOffsets`, `startingTimestamp` and ends",
            "spark/test_spark_filters.py::test_spark_reads_all_of_a_frame_with_the_filters_of_the_last_query",
        ),
        Feature(
            "limit push-down",
            False,
            "`PythonScanBuilder` has no `SupportsPushDownLimit`. Use `endingOffsets`",
            "spark/test_spark_features.py::test_a_limit_is_not_pushed_down",
        ),
    ],
    "Writing": [
        Feature(
            "modes `append` and `overwrite`",
            True,
            "`overwrite` needs `truncate=true`, and trims what was there before",
            "spark/test_spark_sink_writes.py::test_overwriting_trims_what_was_there_before",
        ),
        Feature(
            "modes `errorifexists` (the default) and `ignore`",
            False,
            "`PythonTable` has the capabilities BATCH_WRITE and TRUNCATE only. Use `append`",
            "spark/test_spark_features.py::test_modes_that_ask_whether_there_is_something",
        ),
        Feature(
            "`partitionBy`",
            False,
            "`PythonTable` has no partitioning. Use the column `stream`, or"
            " [a routing option](options.md)",
            "spark/test_spark_features.py::test_columns_that_partition_a_write",
        ),
        Feature(
            "task retries and speculation",
            True,
            "what the losers wrote is never visible",
            "faults/test_speculation.py::test_losers_that_end_after_the_commit",
        ),
    ],
    "Streaming queries": [
        Feature(
            "exactly once, after a crash too",
            True,
            "",
            "faults/test_sink_kill.py::test_killed_at_any_time",
        ),
        Feature(
            "`foreachBatch`",
            True,
            "exactly once with [`txnAppId` and `txnVersion`](../how-to/foreach-batch.md)",
            "spark/test_spark_exactly_once.py::test_for_each_batch",
        ),
        Feature(
            "trigger `availableNow`",
            True,
            "limits hold, and the end is that of its start",
            "spark/test_spark_streaming.py::test_available_now_copies_everything_once",
        ),
        Feature(
            "trigger `once`",
            True,
            "it ignores limits, as Spark says",
            "spark/test_spark_streaming.py::test_once_takes_everything_whatever_the_limits_are",
        ),
        Feature(
            "trigger `continuous`",
            False,
            "`PythonTable` lacks CONTINUOUS_READ",
            "spark/test_spark_features.py::test_triggers_without_micro_batches",
        ),
        Feature(
            "trigger `realTime`",
            False,
            "`PythonMicroBatchStream` lacks `SupportsRealTimeMode`, and the sink is not in Spark's"
            " list of those allowed",
            "spark/test_spark_features.py::test_triggers_without_micro_batches",
        ),
        Feature(
            "output mode `complete`",
            False,
            "a stream is append-only. Use `foreachBatch`",
            "spark/test_spark_streaming.py::test_complete_mode_is_refused",
        ),
        Feature(
            "output mode `update`",
            False,
            "`PythonWriteBuilder` lacks `SupportsStreamingUpdateAsAppend`. Use `foreachBatch`",
            "spark/test_spark_features.py::test_update_mode",
        ),
        Feature(
            "offsets in `lastProgress`",
            True,
            "JSON by stream id; [`lag`](../how-to/monitor-lag.md) has names",
            "spark/test_spark_features.py::test_what_the_progress_shows",
        ),
        Feature(
            "a readable `description` in `lastProgress`",
            False,
            "it is the `toString` of `PythonMicroBatchStream`, a name of a Java object. Use"
            " `queryName`",
            "spark/test_spark_features.py::test_what_the_progress_shows",
        ),
        Feature(
            "listeners",
            True,
            "with [lag and metrics for Prometheus](../how-to/monitor-lag.md)",
            "spark/test_spark_observing.py::test_a_registry_shows_running_queries",
        ),
    ],
    "SQL and tables": [
        Feature(
            "`CREATE TEMPORARY VIEW ... USING sbp OPTIONS (...)`",
            True,
            "",
            "spark/test_spark_catalog.py::test_views_in_sql",
        ),
        Feature(
            "`INSERT INTO` a temporary view",
            True,
            "a view for writing has its own columns and the option `stream`",
            "spark/test_spark_features.py::test_a_view_to_insert_into",
        ),
        Feature(
            "`CREATE TABLE ... USING sbp` with columns",
            True,
            "options are given at each use, `FROM t WITH (...)`, as Spark does not give those of"
            " the table to a source in Python",
            "spark/test_spark_catalog.py::test_a_table_has_its_options_where_it_is_used",
        ),
        Feature(
            "options of `CREATE TABLE`",
            False,
            "`PythonDataSourceV2` gets the options of the use only. An error names the way out",
            "spark/test_spark_catalog.py::test_a_table_without_options_names_their_place",
        ),
        Feature(
            "`saveAsTable`, `toTable`, `writeTo(...).create()`",
            True,
            "the table is read with options, too",
            "spark/test_spark_catalog.py::test_a_saved_table_is_read_with_options",
        ),
        Feature(
            "`insertInto`",
            False,
            "it drops options. Use `writeTo(...).options(...).append()`",
            "spark/test_spark_features.py::test_insert_into_drops_options",
        ),
        Feature(
            "``SELECT * FROM sbp.`orders` ``",
            False,
            "Spark allows it for sources of files only. Use a temporary view",
            "spark/test_spark_features.py::test_a_stream_is_no_file",
        ),
        Feature(
            "`DELETE`, `UPDATE`",
            False,
            "`PythonTable` lacks `SupportsDelete` and `SupportsRowLevelOperations`; a stream is"
            " append-only. `sbp streams trim` removes old records",
            "spark/test_spark_features.py::test_rows_are_not_changed",
        ),
    ],
    "Where it runs": [
        Feature(
            "`local[n]`",
            True,
            "",
            "spark/test_spark_streaming.py::test_available_now_copies_everything_once",
        ),
        Feature(
            "Spark Connect",
            True,
            "",
            "spark/test_spark_connect.py::test_a_batch_and_a_stream",
        ),
        Feature(
            "a standalone master with several executors, dynamic allocation, speculation",
            True,
            "",
            "spark/test_spark_surroundings.py::test_a_standalone_master_that_speculates_and_allocates_executors",
        ),
        Feature(
            "`spark.python.use.daemon=false`",
            True,
            "each task and each plan starts Python, which takes about a second",
            "spark/test_spark_surroundings.py::test_workers_that_no_daemon_forks",
        ),
    ],
}


def features() -> list[Feature]:
    """Return the features of all sections."""
    return [each for section in _FEATURES.values() for each in section]


_INTRODUCTION: Final = """\
# Spark's features

Features of Spark, and whether they work with `format("sbp")`. A test tries each row, also
those that do not work: it fails when a release of Spark makes them possible. The reasons name
classes of Spark 4.3.
"""


def features_document() -> str:
    """Return the page."""
    lines = [NOTICE, _INTRODUCTION]
    for title, section in _FEATURES.items():
        rows = [
            [each.name, "yes" if each.works else "no", each.note or "-", f"`{each.test}`"]
            for each in section
        ]
        lines += [f"## {title}", "", *table(["feature", "works", "note", "test"], rows), ""]
    return "\n".join(lines)
