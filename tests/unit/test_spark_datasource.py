"""What Spark is given by `format("sbp")`."""

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from sbp_core.errors import ConfigurationError, ConnectError
from sbp_spark import datasource
from sbp_spark.datasource import SbpDataSource
from sbp_spark.options import FoundStream
from sbp_spark.spark_internals import session_files

VALUES = StructType([StructField("value", BinaryType())])


def test_the_streams_of_a_streaming_sink_are_looked_at_once_for_each_of_its_kind(monkeypatch):
    checked = []
    monkeypatch.setattr(datasource, "find_targets", lambda *given: checked.append(given) or {})
    monkeypatch.setattr(session_files, "_found", {})
    kinds = [
        {},
        {"stream": "other"},
        {"onBadRecord": "deadletter:letters"},
        {"onBadRecord": "deadletter:others"},
        {"createStreams": "true"},
        {"createStreams": "true", "createRetentionPeriod": "7d"},
    ]
    for kind in kinds * 2:
        options = {"endpoint": "pd:1", "stream": "s", **kind}
        SbpDataSource(options).streamWriter(VALUES, overwrite=False)
    assert len(checked) == len(kinds)
    other_batches = {"endpoint": "pd:1", "stream": "s", "batchRecords": "5"}
    SbpDataSource(other_batches).streamWriter(VALUES, overwrite=False)
    assert len(checked) == len(kinds)


def test_the_streams_of_columns_are_looked_at_once_for_each_schema(monkeypatch):
    checked = []
    monkeypatch.setattr(datasource, "find_targets", lambda *given: checked.append(given) or {})
    monkeypatch.setattr(session_files, "_found", {})
    grown = StructType([*VALUES.fields, StructField("more", BinaryType())])
    columns = {"endpoint": "pd:1", "stream": "s", "encoding": "columns"}
    for _ in range(2):
        for schema in (VALUES, grown):
            SbpDataSource(columns).streamWriter(schema, overwrite=False)
        merging = {**columns, "mergeSchema": "true"}
        SbpDataSource(merging).streamWriter(grown, overwrite=False)
    names = [schema.arrow.names for _, schema in checked]
    assert names == [["value"], ["value", "more"], ["value", "more"]]
    SbpDataSource({"endpoint": "pd:1", "stream": "s"}).streamWriter(VALUES, overwrite=False)
    assert checked[-1][1] is None


def test_the_end_of_a_micro_batch_looks_at_no_streams(monkeypatch):
    checked = []
    monkeypatch.setattr(datasource, "find_targets", lambda *given: checked.append(given) or {})
    monkeypatch.setattr(session_files, "_found", {})
    options = {"endpoint": "pd:1", "stream": "s"}
    monkeypatch.setattr(datasource, "ends_micro_batches", lambda: True)
    SbpDataSource(options).streamWriter(VALUES, overwrite=False)
    assert not checked
    monkeypatch.setattr(datasource, "ends_micro_batches", lambda: False)
    SbpDataSource(options).streamWriter(VALUES, overwrite=False)
    assert checked


def test_what_a_worker_of_the_session_looked_at_no_other_looks_at(monkeypatch, tmp_path):
    checked = []
    monkeypatch.setattr(datasource, "find_targets", lambda *given: checked.append(given) or {})
    monkeypatch.setattr(session_files, "maybe_session_folder", lambda: tmp_path)

    def plan_in_a_new_worker(**more):
        monkeypatch.setattr(session_files, "_found", {})
        options = {"endpoint": "pd:1", "stream": "s"} | more
        SbpDataSource(options).streamWriter(VALUES, overwrite=False)
        return len(checked)

    assert plan_in_a_new_worker() == 1
    assert plan_in_a_new_worker() == 1
    assert plan_in_a_new_worker(stream="other") == 2
    assert plan_in_a_new_worker(endpoint="pd:2") == 3
    assert plan_in_a_new_worker(endpoint="pd:2") == 3


def test_a_query_goes_on_with_the_streams_that_it_found(monkeypatch, tmp_path):
    found = [{"s": FoundStream(number, 5)} for number in range(3)]
    monkeypatch.setattr(datasource, "find_targets", lambda *given: found.pop(0))
    monkeypatch.setattr(session_files, "maybe_session_folder", lambda: tmp_path)

    def plan_in_a_new_worker(**more):
        monkeypatch.setattr(session_files, "_found", {})
        options = {"endpoint": "pd:1", "stream": "s"} | more
        writer = SbpDataSource(options).streamWriter(VALUES, overwrite=False)
        return writer._options.found

    assert plan_in_a_new_worker(checkpointlocation="a") == {"s": FoundStream(0, 5)}
    assert plan_in_a_new_worker(checkpointlocation="b") == {"s": FoundStream(1, 5)}
    assert plan_in_a_new_worker(checkpointlocation="a") == {"s": FoundStream(0, 5)}
    assert plan_in_a_new_worker() == {}  # two queries would not be told apart
    assert plan_in_a_new_worker() == {}
    assert found == []


def test_a_look_that_failed_is_taken_again(monkeypatch, tmp_path):
    def fail(*given):
        raise ConnectError("nobody answers")

    checked = []
    monkeypatch.setattr(datasource, "find_targets", fail)
    monkeypatch.setattr(session_files, "maybe_session_folder", lambda: tmp_path)
    monkeypatch.setattr(session_files, "_found", {})
    sink = SbpDataSource({"endpoint": "pd:1", "stream": "s"})
    with pytest.raises(ConnectError):
        sink.streamWriter(VALUES, overwrite=False)
    monkeypatch.setattr(datasource, "find_targets", lambda *given: checked.append(given) or {})
    sink.streamWriter(VALUES, overwrite=False)
    assert checked


def test_no_output_mode_is_recommended_that_spark_refuses():
    sink = SbpDataSource({"endpoint": "pd:1", "stream": "s"})
    with pytest.raises(ConfigurationError, match=r"outputMode\('append'\), or .* foreachBatch"):
        sink.streamWriter(VALUES, overwrite=True)


def test_a_session_that_keeps_no_files_is_looked_at_by_each_worker(monkeypatch, tmp_path):
    checked = []
    monkeypatch.setattr(datasource, "find_targets", lambda *given: checked.append(given) or {})
    monkeypatch.setattr(session_files, "maybe_session_folder", lambda: tmp_path / "removed")
    sink = SbpDataSource({"endpoint": "pd:1", "stream": "s"})
    for _ in range(2):
        monkeypatch.setattr(session_files, "_found", {})
        sink.streamWriter(VALUES, overwrite=False)
    assert len(checked) == 2
