"""Reading and writing over TLS, with files that Spark's workers open themselves."""

from chispa import assert_df_equality
from pyspark.sql.types import BinaryType, StructField, StructType

from sbp_core.cluster import LocalCluster
from tests.support.security import Authority

VALUES = StructType([StructField("value", BinaryType())])


def test_records_are_written_and_read_over_mutual_tls(spark, tmp_path):
    authority = Authority(tmp_path / "authority")
    pair = authority.issue()
    tls = authority.server(pair, client_ca_file=authority.ca_file)
    with LocalCluster(tmp_path / "data", tls=tls) as cluster:
        options = {
            "endpoint": cluster.endpoint,
            "tlsCaFile": str(authority.ca_file),
            "tlsCertFile": str(pair.cert_file),
            "tlsKeyFile": str(pair.key_file),
        }
        written = spark.createDataFrame([(b"a",), (b"b",)], VALUES).repartition(2)
        sink = written.write.format("sbp").options(**options)
        sink.option("stream", "s").option("createStreams", "true").mode("append").save()
        read = spark.read.format("sbp").options(**options).option("streams", "s").load()
        assert_df_equality(read.select("value"), written, ignore_row_order=True)
        tables = spark.read.format("sbp").options(**options).option("table", "streams").load()
        assert [each.stream for each in tables.select("stream").collect()] == ["s"]
