"""The fixtures that the package brings, where a Spark session is active."""


def test_the_active_session_is_used(spark, spark_with_sbp):
    assert spark_with_sbp.sparkContext is spark.sparkContext
    assert spark_with_sbp.conf.get("spark.sql.streaming.stopTimeout") == "20s"  # as it was started
