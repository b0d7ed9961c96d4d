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


def test_rows_that_name_no_stream(sbp, stream):
    with pytest.raises(PySparkException) as raised:
        sbp.save(sbp.load(stream).selectExpr("value", "'no name' as stream"))
    check_message(raised, "column stream: 'no name' is no stream name")


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
