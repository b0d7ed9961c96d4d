"""Spark against servers that speak elasticstream-2023-04."""

from __future__ import annotations

from spark_streams import Sbp, append_values, numbered

from sbp_core.client import Client, StreamSpec


def test_batches_and_a_query_work_in_the_other_dialect(spark, foreign_cluster, checkpoint):
    names = ["spark-in-0", "spark-in-1", "spark-out"]
    sbp = Sbp(spark, foreign_cluster.endpoint)
    with Client(foreign_cluster.endpoint) as client:
        client.create_streams([StreamSpec(name) for name in names])
        rows = spark.range(20_000).selectExpr("cast(id as string) as value").coalesce(1)
        sbp.save(rows, stream=names[0])
        append_values(client, names[1], numbered(0, 10))
    assert sbp.values(names[0]) == numbered(0, 20_000)
    assert sbp.load(*names[:2]).count() == 20_010
    # These servers keep no cursors, which ends no query.
    frame = sbp.load_stream(*names[:2], group="nightly").select("value")
    sbp.copy(frame, names[2], checkpoint)
    assert sorted(sbp.values(names[2])) == sorted(numbered(0, 20_000) + numbered(0, 10))
