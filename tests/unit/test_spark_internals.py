"""PySpark internals that the source relies on, in the releases of `SEEN_IN`."""

import importlib.util
import io
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from pyspark.serializers import read_int
from pyspark.sql import datasource_internal
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import LongType, StructField, StructType

from sbp_spark.spark_internals import SEEN_IN, worker_process
from sbp_spark.spark_internals.rows_with_plan import OWN_READER, RowsWithPlan, maybe_own_reader

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2]})
SCHEMA = StructType([StructField("n", LongType())])


class Planned(RowsWithPlan):
    """A reader of one partition, whose rows it may have."""

    def __init__(self, rows):
        self.rows = rows

    def partitions(self, start, end):
        self._rows, self._rows_are_of = self.rows, (start, end)
        return ["partition"]


def told_to_spark(reader):
    """The integer that Spark's runner writes after the only partition of a micro-batch."""
    offset = b"\0\0\0\2{}"
    out = io.BytesIO()
    runner.partitions_func(reader, None, SCHEMA, 100, io.BytesIO(offset * 2), out)
    out.seek(0)
    assert read_int(out) == 1
    out.read(read_int(out))
    return read_int(out)


def test_the_insides_were_looked_at_in_this_release():
    assert pyspark.__version__ in SEEN_IN, "run the tests of Spark with it, then add it to SEEN_IN"


def test_the_oldest_release_that_is_allowed_is_among_them():
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    (bounds,) = (each for each in project["dependencies"] if each.startswith("pyspark"))
    assert bounds.startswith(f"pyspark>={SEEN_IN[0]},")


def test_spark_takes_the_rows_of_a_plan_from_the_class_of_its_own_reader():
    assert OWN_READER is datasource_internal._SimpleStreamReaderWrapper
    reader = Planned([ROWS])
    assert told_to_spark(reader) == runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    assert type(reader) is reader.__class__  # as soon as they are taken
    assert told_to_spark(Planned(None)) == runner.PREFETCHED_RECORDS_NOT_FOUND


def test_rows_of_another_micro_batch_are_not_brought():
    reader = Planned([ROWS])
    reader.partitions({"a": 1}, {"a": 2})
    assert reader.getCache({"a": 1}, {"a": 3}) is None


def test_in_a_release_that_was_not_tested_tasks_read():
    assert maybe_own_reader("9.9.0") is None


def test_without_that_class_tasks_read():
    reader = Planned([ROWS])
    reader.own_reader = None
    assert told_to_spark(reader) == runner.PREFETCHED_RECORDS_NOT_FOUND


@pytest.mark.parametrize("release", [None, SimpleNamespace()])
def test_a_release_may_lack_the_module_or_the_class(release, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource_internal", release)
    assert maybe_own_reader() is None


def test_a_class_of_that_name_that_brings_no_rows_is_another_one(monkeypatch):
    monkeypatch.delattr(datasource_internal._SimpleStreamReaderWrapper, "getCache")
    assert maybe_own_reader() is None


@pytest.mark.parametrize("name", [worker_process._DAEMON, worker_process._COMMITTER])
def test_the_programs_of_workers_are_modules_of_spark(name):
    assert importlib.util.find_spec(name) is not None


def test_in_a_program_without_a_spec_nothing_is_taken_for_granted(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())
    monkeypatch.setattr(sys, "argv", ["main", worker_process._COMMITTER])
    assert not worker_process.is_worker()
    assert not worker_process.ends_micro_batches()
    assert worker_process.maybe_session_folder() is None
