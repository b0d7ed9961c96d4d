"""Spark against servers that speak elasticstream-2023-04: they know no transactions."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from sbp_core.client import AppendItem, Client, StreamSpec
from tests.support.data.batches import sequence_batch
from tests.support.spark import Sbp, numbered, wait_until_over

pytestmark = pytest.mark.dialect


def test_batches_and_a_query_work_in_the_other_dialect(spark, foreign_cluster, checkpoint):
    names = ["spark-in-0", "spark-in-1", "spark-out"]
    sbp = Sbp(spark, foreign_cluster.endpoint)
    with Client(foreign_cluster.endpoint) as client:
        client.create_streams([StreamSpec(name) for name in names])
        rows = spark.range(20_000).selectExpr("cast(id as string) as value").coalesce(1)
        sbp.save(rows, stream=names[0], delivery="at-least-once")
        (other,) = client.describe_streams([names[1]])
        client.append([AppendItem(other.stream_id, sequence_batch(numbered(0, 10)))])
    assert sbp.values(names[0]) == numbered(0, 20_000)
    assert sbp.load(*names[:2]).count() == 20_010
    # These servers keep no cursors, which ends no query.
    frame = sbp.load_stream(*names[:2], group="nightly").select("value")
    writer = frame.writeStream.format("sbp").options(endpoint=sbp.endpoint, stream=names[2])
    writer = writer.options(checkpointLocation=str(checkpoint), delivery="at-least-once")
    wait_until_over(writer.trigger(availableNow=True).start())
    assert sorted(sbp.values(names[2])) == sorted(numbered(0, 20_000) + numbered(0, 10))
    with pytest.raises(PySparkException, match="set delivery=at-least-once"):
        sbp.save(spark.createDataFrame([("a",)], "value string"), stream=names[2])
