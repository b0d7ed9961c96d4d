"""Values in JSON, Avro and Protobuf: Spark's own functions make them and read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from chispa import assert_df_equality
from grpc_tools import protoc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.protobuf.functions import from_protobuf, to_protobuf

from tests.support.spark_clusters import AVRO, PROTOBUF, add_jar

time = datetime.fromisoformat
SCHEMAS = Path(__file__).parent / "values"
COLUMNS = (
    "sensor bigint, celsius double, place struct<city: string, height: double>,"
    " tags array<string>, at timestamp"
)
MICROSECONDS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""By default Spark writes JSON with milliseconds only."""
READINGS = [
    (1, -7.25, ("Zürich", 408.0), ["roof", "north"], time("2024-02-29T12:00:00.123456")),
    (2**62, 31.5, ("東京", 40.0), [], time("1969-12-31T23:59:59")),
    (-3, 1e-300, ("", -430.5), ["🚀"], time("2100-01-01T00:00:00")),
]


@dataclass(frozen=True)
class Form:
    """How a row becomes a value and how a value becomes a row."""

    encode: Callable[[Column], Column]
    decode: Callable[[Column], Column]


def json_form(spark: SparkSession, folder: Path) -> Form:
    return Form(
        lambda row: sf.to_json(row, MICROSECONDS),
        lambda value: sf.from_json(value.cast("string"), COLUMNS, MICROSECONDS),
    )


def avro_form(spark: SparkSession, folder: Path) -> Form:
    add_jar(spark, AVRO)
    schema = (SCHEMAS / "reading.avsc").read_text(encoding="utf-8")
    return Form(lambda row: to_avro(row, schema), lambda value: from_avro(value, schema))


def protobuf_form(spark: SparkSession, folder: Path) -> Form:
    described = compile_descriptors("reading.proto", folder)
    add_jar(spark, PROTOBUF)
    return Form(
        lambda row: to_protobuf(row, "values.Reading", binaryDescriptorSet=described),
        lambda value: from_protobuf(value, "values.Reading", binaryDescriptorSet=described),
    )


def protobuf_classes_form(spark: SparkSession, folder: Path) -> Form:
    """Protobuf without the jar: message classes in functions in Python."""
    described = compile_descriptors("reading.proto", folder)

    def new_reading():
        from google.protobuf import descriptor_pb2, message_factory

        files = descriptor_pb2.FileDescriptorSet.FromString(described).file
        return message_factory.GetMessages(files)["values.Reading"]()

    def to_value(sensor, celsius, place, tags, micros):
        reading = new_reading()
        reading.sensor, reading.celsius = sensor, celsius
        reading.place.city, reading.place.height = place
        reading.tags.extend(tags)
        reading.at.FromMicroseconds(micros)
        return reading.SerializeToString()

    def from_value(value):
        reading = new_reading()
        reading.ParseFromString(bytes(value))
        place = (reading.place.city, reading.place.height)
        micros = reading.at.ToMicroseconds()
        return (reading.sensor, reading.celsius, place, list(reading.tags), micros)

    write = sf.udf(to_value, "binary")
    read = sf.udf(from_value, COLUMNS.replace("at timestamp", "at bigint"))

    def encode(row: Column) -> Column:
        *others, at = (row[name] for name in ("sensor", "celsius", "place", "tags", "at"))
        return write(*others, sf.unix_micros(at))

    def decode(value: Column) -> Column:
        row = read(value)
        return row.withField("at", sf.timestamp_micros(row["at"]))

    return Form(encode, decode)


def compile_descriptors(name: str, folder: Path) -> bytes:
    """Return what `protoc --descriptor_set_out` makes of a file, with all that it imports."""
    known = Path(protoc.__file__).parent / "_proto"
    out = folder / f"{name}.desc"
    options = [f"--proto_path={SCHEMAS}", f"--proto_path={known}", "--include_imports"]
    assert protoc.main(["protoc", *options, f"--descriptor_set_out={out}", name]) == 0
    return out.read_bytes()


@pytest.fixture(
    params=[json_form, avro_form, protobuf_form, protobuf_classes_form],
    ids=["json", "avro", "protobuf", "protobuf classes"],
)
def form(request, spark, tmp_path) -> Form:
    return request.param(spark, tmp_path)


@pytest.fixture
def readings(spark):
    return spark.createDataFrame(READINGS, COLUMNS).coalesce(1)


def test_rows_survive_as_values(sbp, new_streams, form, readings):
    (stream,) = new_streams(1)
    sbp.save(readings.select(form.encode(sf.struct("*")).alias("value")), stream=stream)
    read = sbp.load(stream).orderBy("offset").select(form.decode(sf.col("value")).alias("row"))
    assert_df_equality(read.select("row.*"), readings, ignore_nullable=True)


def test_a_query_reads_values_and_writes_others(sbp, new_streams, form, readings, checkpoint):
    source, target = new_streams(2)
    sbp.save(readings.select(form.encode(sf.struct("*")).alias("value")), stream=source)
    row = form.decode(sf.col("value"))
    warm = sbp.load_stream(source).select(row.alias("row")).where("row.celsius > 0")
    doubled = sf.col("row").withField("celsius", sf.col("row.celsius") * 2)
    sbp.copy(warm.select(form.encode(doubled).alias("value")), target, checkpoint)
    read = sbp.load(target).select(row.alias("row")).select("row.*")
    expected = readings.where("celsius > 0").withColumn("celsius", sf.col("celsius") * 2)
    assert_df_equality(read, expected, ignore_nullable=True, ignore_row_order=True)


def test_avro_of_an_older_schema_is_read_with_a_newer_one(sbp, new_streams, spark, readings):
    add_jar(spark, AVRO)
    (stream,) = new_streams(1)
    old = '{"type": "record", "name": "R", "fields": [{"name": "sensor", "type": "int"}]}'
    new = (
        '{"type": "record", "name": "R", "fields": [{"name": "sensor", "type": "long"},'
        ' {"name": "unit", "type": "string", "default": "C"}]}'
    )
    row = sf.struct(sf.lit(7).alias("sensor"))
    sbp.save(spark.range(1).select(to_avro(row, old).alias("value")), stream=stream)
    read = sbp.load(stream).select(from_avro("value", old, {"avroSchema": new}).alias("row"))
    assert [tuple(each.row) for each in read.collect()] == [(7, "C")]


def test_a_value_that_is_none_is_null_or_an_error_as_asked(sbp, new_streams, spark):
    (stream,) = new_streams(1)
    lines = spark.createDataFrame([('{"sensor": 1}',), ("{",)], "value string").coalesce(1)
    sbp.save(lines, stream=stream)
    text = sbp.load(stream).orderBy("offset").select(sf.col("value").cast("string").alias("text"))
    read = text.select(sf.from_json("text", "sensor bigint").alias("row"))
    assert [each.row.sensor for each in read.collect()] == [1, None]
    strict = text.select(sf.from_json("text", "sensor bigint", {"mode": "FAILFAST"}).alias("row"))
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        strict.collect()
