"""What Spark is given by `format("sbp")`."""

from pyspark.sql.types import BinaryType, StructField, StructType

from sbp_spark import client_pool, datasource
from sbp_spark.datasource import SbpDataSource

VALUES = StructType([StructField("value", BinaryType())])


def test_the_streams_of_a_streaming_sink_are_looked_at_once_for_each_of_its_kind(monkeypatch):
    checked = []
    monkeypatch.setattr(datasource, "check_targets", lambda *given: checked.append(given))
    monkeypatch.setattr(client_pool, "_reached", set())
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
    monkeypatch.setattr(datasource, "check_targets", lambda *given: checked.append(given))
    monkeypatch.setattr(client_pool, "_reached", set())
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
    monkeypatch.setattr(datasource, "check_targets", lambda *given: checked.append(given))
    monkeypatch.setattr(client_pool, "_reached", set())
    options = {"endpoint": "pd:1", "stream": "s"}
    monkeypatch.setattr(datasource, "ends_micro_batches", lambda: True)
    SbpDataSource(options).streamWriter(VALUES, overwrite=False)
    assert not checked
    monkeypatch.setattr(datasource, "ends_micro_batches", lambda: False)
    SbpDataSource(options).streamWriter(VALUES, overwrite=False)
    assert checked
