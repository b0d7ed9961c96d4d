"""The data source that Spark gets for `format("sbp")`."""

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from sbp_core.errors import ConfigurationError, ConnectError
from sbp_spark.datasource import Planning, SbpDataSource
from sbp_spark.options.stream_selection import FoundStream
from sbp_spark.spark_internals.worker_process import FoundOnce
from sbp_spark.writing.directory import PlannedTargets

VALUES = StructType([StructField("value", BinaryType())])


class Workers:
    """Python workers of one Spark session, one after the other, and the looks that they take."""

    def __init__(self):
        self.looks = []
        self.answers = dict
        self._folder = None
        self._do_they_end = False
        self.start()

    def start(self):
        """The next plan runs in a worker that knows nothing."""
        planning = Planning(
            self._find,
            lambda *_: PlannedTargets({}, {}),
            lambda: self._do_they_end,
            FoundOnce(lambda: self._folder),
        )
        self._source = type("Source", (SbpDataSource,), {"planning": planning})

    def keep_files_in(self, folder):
        self._folder = folder

    def end_micro_batches(self, do_they):
        self._do_they_end = do_they

    def plan(self, schema=VALUES, **options):
        sink = self._source({"endpoint": "pd:1", "stream": "s"} | options)
        return sink.streamWriter(schema, overwrite=False)

    def _find(self, *given):
        found = self.answers()
        self.looks.append(given)
        return found


@pytest.fixture
def workers():
    return Workers()


def test_the_streams_of_a_streaming_sink_are_looked_at_once_for_each_of_its_kind(workers):
    kinds = [
        {},
        {"stream": "other"},
        {"onBadRecord": "deadletter:letters"},
        {"onBadRecord": "deadletter:others"},
        {"createStreams": "true"},
        {"createStreams": "true", "createRetentionPeriod": "7d"},
    ]
    for kind in kinds * 2:
        workers.plan(**kind)
    assert len(workers.looks) == len(kinds)
    workers.plan(batchRecords="5")
    assert len(workers.looks) == len(kinds)


def test_the_streams_of_columns_are_looked_at_once_whatever_the_schema_is(workers):
    grown = StructType([*VALUES.fields, StructField("more", BinaryType())])
    for schema in (VALUES, grown):
        workers.plan(schema, encoding="columns")
    assert len(workers.looks) == 1
    workers.plan()
    assert len(workers.looks) == 2


def test_the_end_of_a_micro_batch_looks_at_no_streams(workers):
    workers.end_micro_batches(True)
    workers.plan()
    assert not workers.looks
    workers.end_micro_batches(False)
    workers.plan()
    assert workers.looks


def test_a_lookup_of_one_worker_serves_all_workers_of_the_session(workers, tmp_path):
    workers.keep_files_in(tmp_path)
    for options, looks in (
        ({}, 1),
        ({}, 1),
        ({"stream": "other"}, 2),
        ({"endpoint": "pd:2"}, 3),
        ({"endpoint": "pd:2"}, 3),
    ):
        workers.start()
        workers.plan(**options)
        assert len(workers.looks) == looks


def test_a_query_goes_on_with_the_streams_that_it_found(workers, tmp_path):
    found = [{"s": FoundStream(number, 5)} for number in range(3)]
    workers.answers = lambda: found.pop(0)
    workers.keep_files_in(tmp_path)

    def plan_in_a_new_worker(**options):
        workers.start()
        return workers.plan(**options)._options.found

    assert plan_in_a_new_worker(checkpointlocation="a") == {"s": FoundStream(0, 5)}
    assert plan_in_a_new_worker(checkpointlocation="b") == {"s": FoundStream(1, 5)}
    assert plan_in_a_new_worker(checkpointlocation="a") == {"s": FoundStream(0, 5)}
    assert plan_in_a_new_worker() == {}  # two queries would not be distinguished
    assert plan_in_a_new_worker() == {}
    assert found == []


def test_a_look_that_failed_is_taken_again(workers, tmp_path):
    def fail():
        raise ConnectError("no server answers")

    workers.keep_files_in(tmp_path)
    workers.answers = fail
    with pytest.raises(ConnectError):
        workers.plan()
    workers.answers = dict
    workers.plan()
    assert workers.looks


def test_no_output_mode_is_recommended_that_spark_refuses():
    sink = SbpDataSource({"endpoint": "pd:1", "stream": "s"})
    with pytest.raises(ConfigurationError, match=r"outputMode\('append'\), or .* foreachBatch"):
        sink.streamWriter(VALUES, overwrite=True)


def test_a_session_that_keeps_no_files_is_looked_at_by_each_worker(workers, tmp_path):
    workers.keep_files_in(tmp_path / "removed")
    for _ in range(2):
        workers.start()
        workers.plan()
    assert len(workers.looks) == 2
