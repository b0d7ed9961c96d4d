"""The page of Spark's features: which work with the data source, and why the others cannot.

The rows are here. Whether a feature works is what the tests find that are marked with
`spark_feature` and its name: `make features` runs them and writes `spark_features.json`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from status_codes import NOTICE, table

_TESTS: Final = Path(__file__).parents[1] / "tests"
_RESULTS: Final = Path(__file__).with_suffix(".json")
_MARKER: Final = "spark_feature"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of Spark. `note` has what to know or, if it is impossible, why, and the way out."""

    name: str
    note: str = ""


_FEATURES: Final[Mapping[str, Sequence[Feature]]] = {
    "Reading": [
        Feature("batch read, a snapshot", "the tails are those of the first action"),
        Feature("columns chosen by `.schema(...)`"),
        Feature(
            "rows chosen by a condition",
            "the option [`where`](../how-to/read-some-rows.md); in streaming, too",
        ),
        Feature("record batches skipped by statistics", "the option `statsColumns` of the sink"),
        Feature(
            "a schema that does not fit is refused",
            "at the first action of a batch, and at the start of a query",
        ),
        Feature(
            "a schema that does not fit is refused at `load()`",
            "`DataSourceV2Utils.getTableFromProvider` makes the table from the schema alone,"
            " without a call of the source: `PythonDataSourceV2` supports external metadata",
        ),
        Feature(
            "filter push-down",
            "Spark keeps one plan for a `load()`, with the filters of the last query, so rows would"
            " be missing in others. Use `where`, `startingOffsets`, `startingTimestamp` and ends",
        ),
        Feature(
            "limit push-down",
            "`PythonScanBuilder` has no `SupportsPushDownLimit`. Use `endingOffsets`",
        ),
    ],
    "Writing": [
        Feature(
            "modes `append` and `overwrite`",
            "`overwrite` needs `truncate=true`, and trims what was there before",
        ),
        Feature(
            "modes `errorifexists` (the default) and `ignore`",
            "`PythonTable` has the capabilities BATCH_WRITE and TRUNCATE only. Use `append`",
        ),
        Feature(
            "`partitionBy`",
            "`PythonTable` has no partitioning. Use the column `stream`, or"
            " [a routing option](options.md)",
        ),
        Feature(
            "tasks that fail and are tried again",
            "what the losers wrote is never visible. `tests/faults/test_speculation.py` has those"
            " that Spark runs twice at a time",
        ),
    ],
    "Streaming queries": [
        Feature(
            "exactly once, after a crash too",
            "`tests/faults/test_sink_kill.py` kills drivers, workers and servers at any time",
        ),
        Feature(
            "`foreachBatch`",
            "exactly once with [`txnAppId` and `txnVersion`](../how-to/foreach-batch.md)",
        ),
        Feature("trigger `availableNow`", "limits hold, and the end is that of its start"),
        Feature("trigger `once`", "it ignores limits, as Spark says"),
        Feature("trigger `continuous`", "`PythonTable` lacks CONTINUOUS_READ"),
        Feature(
            "trigger `realTime`",
            "`PythonMicroBatchStream` lacks `SupportsRealTimeMode`, and the sink is not in Spark's"
            " list of those allowed",
        ),
        Feature("output mode `complete`", "a stream is append-only. Use `foreachBatch`"),
        Feature(
            "output mode `update`",
            "`PythonWriteBuilder` lacks `SupportsStreamingUpdateAsAppend`. Use `foreachBatch`",
        ),
        Feature(
            "offsets in `lastProgress`",
            "JSON by stream id; [`lag`](../how-to/monitor-lag.md) has names",
        ),
        Feature(
            "a readable `description` in `lastProgress`",
            "it is the `toString` of `PythonMicroBatchStream`, a name of a Java object. Use"
            " `queryName`",
        ),
        Feature(
            "`metrics` of a source in `lastProgress`",
            "`PythonMicroBatchStream` lacks `ReportsSourceMetrics`. Use"
            " [`lag`](../how-to/monitor-lag.md)",
        ),
        Feature("listeners", "with [lag and metrics for Prometheus](../how-to/monitor-lag.md)"),
    ],
    "SQL and tables": [
        Feature("`CREATE TEMPORARY VIEW ... USING sbp OPTIONS (...)`"),
        Feature(
            "`INSERT INTO` a temporary view",
            "a view for writing has its own columns and the option `stream`",
        ),
        Feature(
            "`CREATE TABLE ... USING sbp` with columns",
            "options are given at each use, `FROM t WITH (...)`, as Spark does not give those of"
            " the table to a source in Python",
        ),
        Feature(
            "options of `CREATE TABLE`",
            "`PythonDataSourceV2` gets the options of the use only. An error names the way out",
        ),
        Feature(
            "`CREATE TABLE ... USING sbp` without columns",
            "Spark would ask for the columns with the options of the table, and read without them,"
            " so the source refuses it. The error names the way out",
        ),
        Feature(
            "`saveAsTable`, `toTable`, `writeTo(...).create()`",
            "the table is read with options, too",
        ),
        Feature("`insertInto`", "it drops options. Use `writeTo(...).options(...).append()`"),
        Feature(
            "``SELECT * FROM sbp.`orders` ``",
            "Spark allows it for sources of files only. Use a temporary view",
        ),
        Feature(
            "`DELETE`, `UPDATE`",
            "`PythonTable` lacks `SupportsDelete` and `SupportsRowLevelOperations`; a stream is"
            " append-only. `sbp streams trim` removes old records",
        ),
    ],
    "Where it runs": [
        Feature("`local[n]`"),
        Feature("`local-cluster[n,cores,memory]`", "executors are processes of their own"),
        Feature("a standalone master with several executors, dynamic allocation, speculation"),
        Feature(
            "`spark.python.use.daemon=false`",
            "each task and each plan starts Python, which takes about a second",
        ),
        Feature(
            "`spark.python.worker.reuse=false`",
            "each task has a new worker, with connections of its own",
        ),
        Feature("`spark.python.unix.domain.socket.enabled`, `true` and `false`"),
        Feature("Spark Connect"),
        Feature(
            "`foreachBatch` in Spark Connect",
            "its function has a session of its own, cloned from that of the query. Exactly once,"
            " as above",
        ),
        Feature("Declarative Pipelines", "a table of a stream, and a sink into one"),
    ],
}


def features() -> list[Feature]:
    """Return the features of all sections."""
    return [each for section in _FEATURES.values() for each in section]


@cache
def results() -> dict[str, Any]:
    """Return what `tests/try_spark_features.py` wrote."""
    return dict(json.loads(_RESULTS.read_text(encoding="utf-8")))


def marked(text: str) -> Iterator[str]:
    """Yield the names of the features that the tests of a module are marked with."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr), args=[ast.Constant(value=str(name))]):
                if attr == _MARKER:
                    yield name


def faults() -> list[str]:
    """Return what is wrong between the rows, the marked tests, and the results of their run."""
    texts = (path.read_text(encoding="utf-8") for path in _TESTS.glob("*/test_*.py"))
    in_tests = {name for text in texts if f"mark.{_MARKER}(" in text for name in marked(text)}
    return compare({each.name for each in features()}, in_tests, {*results()["features"]})


def compare(rows: set[str], in_tests: set[str], tried: set[str]) -> list[str]:
    """Return a line for each name that is not in all three."""
    return [
        *(f"no test is marked with spark_feature({each!r})" for each in sorted(rows - in_tests)),
        *(f"no row of docs/spark_features.py is {each!r}" for each in sorted(in_tests - rows)),
        *(f"{each!r} was not tried: run `make features`" for each in sorted(rows - tried)),
        *(f"{each!r} is tried no longer: run `make features`" for each in sorted(tried - rows)),
    ]


_INTRODUCTION: Final = """\
# Spark's features

Features of Spark, and whether they work with `format("sbp")`. A run of the tests that are named
here made this page. The tests of impossible things expect what Spark does now, mostly an error, so
they fail when a release makes these things possible. Classes are named as in Spark.
"""


def features_document() -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {number}" for name, number in results()["versions"].items())
    lines = [NOTICE, _INTRODUCTION, f"Tried with {versions}.", ""]
    for title, section in _FEATURES.items():
        rows = [_row(each, results()["features"].get(each.name)) for each in section]
        lines += [f"## {title}", "", *table(["feature", "result", "note", "tests"], rows), ""]
    return "\n".join(lines)


def _row(feature: Feature, result: Mapping[str, Any] | None) -> list[str]:
    """Return the cells of a feature."""
    if result is None:
        return [feature.name, "not tried", feature.note or "-", "-"]
    note = feature.note or "-"
    if refusals := result["refusals"]:
        note = f"{note}. Error: {', '.join(f'`{each}`' for each in refusals)}"
    tests = "<br>".join(f"`{each}`" for each in result["tests"])
    return [feature.name, "works" if result["works"] else "impossible", note, tests]
