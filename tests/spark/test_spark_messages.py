"""Error messages as a user sees them, wrapped by Spark."""

from __future__ import annotations

import re
import socket

import pytest
from pyspark.errors import PySparkException

from tests.support.spark import append_values, numbered

OWN_FRAMES_MAX = 3
"""Frames of the data source, of the connector, and of the function that raises without frames."""


@pytest.fixture
def stream(new_streams, client):
    (name,) = new_streams(1)
    append_values(client, name, numbered(0, 10))
    return name


@pytest.fixture
def closed_endpoint():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


def check_read(sbp, *parts, options, schema=None):
    """load() or the first action raises the error."""
    reader = sbp.spark.read.format("sbp").options(endpoint=sbp.endpoint)
    with pytest.raises(PySparkException) as raised:
        (reader.schema(schema) if schema else reader).options(**options).load().count()
    check_message(raised, *parts)


def check_message(raised, *parts):
    message = str(raised.value)
    for text in parts:
        assert text in message
    assert "During handling" not in message
    assert "direct cause" not in message
    frames = re.findall(r'File ".*/(?:pyspark_sbp|sbp_spark|sbp_core)/.*', message)
    assert len(frames) <= OWN_FRAMES_MAX, frames


def test_no_server_answers(sbp, stream, closed_endpoint):
    options = {"endpoint": closed_endpoint, "streams": stream}
    check_read(sbp, "option endpoint", closed_endpoint, "`sbp serve`", options=options)
    writer = sbp.load(stream).write.format("sbp").mode("append").option("endpoint", closed_endpoint)
    with pytest.raises(PySparkException) as raised:
        writer.save()
    check_message(raised, "option endpoint", closed_endpoint, "`sbp serve`")


def test_unknown_streams_are_all_named(sbp, stream):
    parts = (
        "option streams",
        "'nowhere'",
        "999999",
        f"sbp streams create NAME --endpoint {sbp.endpoint}",
    )
    check_read(sbp, *parts, options={"streams": f"nowhere,{stream},999999"})


def test_a_stream_by_name_and_by_id_is_one(sbp, stream, client):
    (info,) = client.describe_streams([stream])
    options = {"streams": f"{stream},{info.stream_id}"}
    check_read(sbp, "option streams", "one and the same", stream, options=options)


def test_all_faults_of_the_options_at_once(sbp):
    options = {"strems": "a", "includeHeaders": "perhaps", "startingOffsets": "{"}
    parts = ("strems", "did you mean streams?", "includeHeaders", "startingOffsets", "streams is")
    check_read(sbp, *parts, options=options)


def test_an_unknown_option_with_a_suggestion_lists_no_others(sbp, stream):
    with pytest.raises(PySparkException) as raised:
        sbp.load(stream, failOnDataLos="true").count()
    check_message(raised, "did you mean failOnDataLoss?")
    assert "trimOnCommit" not in str(raised.value)


def test_faults_that_only_a_batch_has(sbp, stream):
    options = {"streams": stream, "startingOffsets": "latest", "maxRecordsPerTrigger": "5"}
    check_read(sbp, "startingOffsets", "maxRecordsPerTrigger", options=options)


def test_an_offset_outside_of_the_stream(sbp, stream):
    options = {"streams": stream, "startingOffsets": f'{{"{stream}": 11}}'}
    check_read(sbp, "option startingOffsets", f"{stream} at 11", "[0, 10)", options=options)


@pytest.mark.spark_feature("a schema that does not fit is refused")
def test_another_schema(sbp, stream):
    parts = (
        "column value bigint",
        "expected value binary",
        "column price does not exist",
        "offset",
    )
    schema = "value bigint, price int"
    check_read(sbp, *parts, options={"streams": stream}, schema=schema)


@pytest.mark.spark_feature("a schema that does not fit is refused")
def test_a_streaming_query_reports_its_faults_at_its_start(sbp, stream, tmp_path):
    reader = sbp.spark.readStream.format("sbp").options(endpoint=sbp.endpoint, streams=stream)
    frames = {
        "expected value binary": reader.schema("value bigint").load(),
        "[0, 10)": sbp.load_stream(stream, startingOffsets=f'{{"{stream}": 11}}'),
    }
    for number, (parts, frame) in enumerate(frames.items()):
        with pytest.raises(PySparkException) as raised:
            sbp.copy(frame.select("value"), stream, tmp_path / str(number))
        check_message(raised, parts)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (["value", "1 as price"], ["column price (int) would be lost"]),
        (["1 as value"], ["column value has type int", "string or binary"]),
        (["key"], ["column value is missing"]),
        (["value", "'x' as headers"], ["column headers has type string", "map<string,binary>"]),
        (["value", "'x' as timestamp"], ["column timestamp has type string"]),
    ],
)
def test_columns_that_cannot_be_written(sbp, stream, columns, parts):
    with pytest.raises(PySparkException) as raised:
        sbp.save(sbp.load(stream).selectExpr(*columns), stream=stream)
    check_message(raised, *parts)


def test_no_stream_is_named(sbp, stream):
    with pytest.raises(PySparkException) as raised:
        sbp.save(sbp.load(stream).select("value"))
    check_message(raised, "column stream is missing", "option stream")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("null", "column stream is null; expected the name"),
        ("'nowhere'", "column stream: not found: stream 'nowhere'"),
        ("'no name'", "column stream: 'no name' is no stream name"),
    ],
)
def test_rows_that_name_no_stream(sbp, stream, name, parts):
    with pytest.raises(PySparkException) as raised:
        sbp.save(sbp.load(stream).selectExpr("value", f"cast({name} as string) as stream"))
    check_message(raised, parts)


def test_overwriting_is_refused(sbp, stream):
    writer = sbp.load(stream).write.format("sbp").options(endpoint=sbp.endpoint, stream=stream)
    with pytest.raises(PySparkException) as raised:
        writer.mode("overwrite").save()
    check_message(raised, "mode overwrite", ".mode('append')", "truncate=true")
    assert len(sbp.values(stream)) == 10


def test_a_streaming_sink_reports_a_wrong_target_before_it_reads(
    sbp, stream, closed_endpoint, tmp_path
):
    targets = {
        "option endpoint": {"endpoint": closed_endpoint, "stream": stream},
        "option stream: not found: stream 'nowhere'": {
            "endpoint": sbp.endpoint,
            "stream": "nowhere",
        },
    }
    for number, (parts, target) in enumerate(targets.items()):
        writer = sbp.load_stream(stream, startingOffsets="earliest").select("value").writeStream
        query = (
            writer.format("sbp")
            .options(checkpointLocation=str(tmp_path / str(number)), **target)
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(PySparkException) as raised:
            query.awaitTermination(60)
        check_message(raised, parts)
