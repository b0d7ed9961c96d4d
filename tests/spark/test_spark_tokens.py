"""A query with a token: it works, and nothing that Spark keeps has the token."""

import json

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructField, StructType

from sbp_core.cluster import LocalCluster
from sbp_spark.datasource import SbpDataSource
from tests.support.security import AUDIENCE, ISSUER, Authority, Issuer

VALUES = StructType([StructField("value", BinaryType())])


@pytest.fixture
def event_log(spark, tmp_path):
    """The events that Spark would keep of its applications, as they are now."""
    sc, jvm = spark.sparkContext, spark._jvm
    folder = tmp_path / "events"
    folder.mkdir()
    conf = sc._jsc.sc().conf().clone().set("spark.eventLog.compress", "false")
    conf.set("spark.eventLog.rolling.enabled", "false")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "tokens", jvm.scala.Option.apply(None), jvm.java.net.URI(folder.as_uri()), conf
    )
    listener.start()
    sc._jsc.sc().addSparkListener(listener)
    yield folder
    sc._jsc.sc().removeSparkListener(listener)


def test_a_query_uses_a_token_that_spark_never_sees(spark, tmp_path, event_log):
    authority, issuer = Authority(tmp_path / "authority"), Issuer(tmp_path)
    pair = authority.issue(common_name="node1")
    words = {"admin": "etl", "jwks-file": str(issuer.jwks_file)}
    words |= {"issuer": ISSUER, "audience": AUDIENCE}
    auth = [word for name, value in words.items() for word in (f"--auth-{name}", value)]
    token_file = tmp_path / "token"
    secrets = [issuer.token(), issuer.token(seconds=-100)]
    token_file.write_bytes(secrets[0])
    with LocalCluster(tmp_path / "data", tls=authority.server(pair), options=auth) as cluster:
        options = {
            "endpoint": cluster.endpoint,
            "tlsCaFile": str(authority.ca_file),
            "tokenFile": str(token_file),
        }
        written = spark.createDataFrame([(b"a",), (b"b",)], VALUES).repartition(2)
        sink = written.write.format("sbp").options(**options)
        sink.option("stream", "s").option("createStreams", "true").mode("append").save()
        source = {**options, "streams": "s", "startingOffsets": "earliest"}
        read = spark.readStream.format("sbp").options(**source).load().select("value")
        target = {**options, "stream": "copy", "createStreams": "true"}
        query = (
            read.writeStream.format("sbp")
            .options(**target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        copied = spark.read.format("sbp").options(**options).option("streams", "copy").load()
        assert sorted(bytes(each.value) for each in copied.collect()) == [b"a", b"b"]
        pickled = [
            cloudpickle.dumps(SbpDataSource(source).streamReader(VALUES)),
            cloudpickle.dumps(SbpDataSource(target).streamWriter(VALUES, overwrite=False)),
        ]
        token_file.write_bytes(secrets[1])
        fresh = {**options, "streams": "s", "isolationClass": "fresh"}  # a client of its own
        with pytest.raises(PySparkException) as raised:
            spark.read.format("sbp").options(**fresh).load().collect()
        assert "has expired" in str(raised.value)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    kept = [
        str(raised.value),
        query._jsq.explainInternal(True),
        copied._jdf.queryExecution().toString(),
        json.dumps([each.json for each in query.recentProgress]),
        repr(spark.sparkContext.getConf().getAll()),
    ]
    files = [*event_log.rglob("*"), *(tmp_path / "checkpoint").rglob("*")]
    files += [cluster.log_path]
    stored = [each.read_bytes() for each in files if each.is_file()]
    everything = b"\n".join([*map(str.encode, kept), *pickled, *stored])
    assert b"tokenFile" in everything
    assert b"SparkListenerTaskEnd" in everything
    for secret in secrets:
        for part in secret.split(b"."):
            assert part not in everything
