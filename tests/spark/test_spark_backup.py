"""A sink goes on at a cluster that was restored from a backup."""

from __future__ import annotations

from sbp_core.cli.main import main
from sbp_core.client import Client, StreamSpec
from sbp_core.cluster import LocalCluster
from tests.support.spark import Sbp


def test_a_micro_batch_that_the_backup_has_is_not_written_again(spark, tmp_path):
    place, checkpoint, texts = tmp_path / "backups", tmp_path / "checkpoint", tmp_path / "texts"
    texts.mkdir()

    def copy(cluster, text):
        (texts / text).write_text(text, encoding="utf-8")
        rows = spark.readStream.text(str(texts)).selectExpr("cast(value as binary) as value")
        Sbp(spark, cluster.endpoint).copy(rows, "end", checkpoint)

    with LocalCluster(tmp_path / "lost") as lost:
        with Client(lost.endpoint) as client:
            client.create_streams([StreamSpec("end")])
        copy(lost, "first")
        copy(lost, "second")
        assert main(["backup", "create", str(place), "--endpoint", lost.endpoint]) == 0
    for name in ("1", ".1.crc"):  # as if Spark had died before it noted the commit
        (checkpoint / "commits" / name).unlink()
    with LocalCluster(tmp_path / "new") as new:
        assert main(["restore", str(place), "--endpoint", new.endpoint]) == 0
        copy(new, "third")
        assert Sbp(spark, new.endpoint).values("end") == [b"first", b"second", b"third"]
