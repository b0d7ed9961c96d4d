"""A project of Declarative Pipelines, and the Spark settings that its runs share."""

from __future__ import annotations

from pathlib import Path
from string import Template

from spark_session import CONF

CATALOG = "memory"
LATEST = f"{CATALOG}.db.latest"
_SPECIFICATION = Template(
    """\
name: orders
storage: file://$folder/storage
libraries:
  - glob:
      include: transformations/**
"""
)
_ORIGIN = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


def origin():
    reader = spark.readStream.format("sbp").option("endpoint", "$endpoint")
    return reader.option("startingOffsets", "earliest").load("$origin")

"""
_ORDERS = Template(
    _ORIGIN
    + """
@dp.table
def orders():
    return origin()


dp.create_sink("copy", "sbp", {"endpoint": "$endpoint", "stream": "$copy"})


@dp.append_flow(target="copy")
def to_copy():
    return origin().select("value")
"""
)
_LATEST = Template(
    _ORIGIN
    + """
@dp.temporary_view
def changes():
    return origin().selectExpr("cast(string(value) as int) % 3 as id", "offset")


dp.create_streaming_table("$latest")
dp.create_auto_cdc_flow(
    target="$latest", source="changes", keys=["id"], sequence_by="offset", stored_as_scd_type=1
)
"""
)


def write_project(folder: Path, endpoint: str, origin: str, copy: str) -> Path:
    """Write a project: a table `orders` of ORIGIN, a sink from ORIGIN to COPY.

    Return its specification.
    """
    _define(folder, "orders", _ORDERS.substitute(endpoint=endpoint, origin=origin, copy=copy))
    specification = folder / "spark-pipeline.yml"
    specification.write_text(_SPECIFICATION.substitute(folder=folder))
    return specification


def add_auto_cdc(folder: Path, endpoint: str, origin: str) -> None:
    """Add the table LATEST: of the numbers in ORIGIN with each remainder of 3 the last one."""
    _define(folder, "latest", _LATEST.substitute(endpoint=endpoint, origin=origin, latest=LATEST))


def _define(folder: Path, name: str, definitions: str) -> None:
    path = folder / "transformations" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(definitions)


def pipeline_conf(folder: Path) -> dict[str, str]:
    """Spark settings with which the tables of a project outlive the process of a run."""
    return {
        **CONF,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
    }


def merging_conf(jar: Path) -> dict[str, str]:
    """Spark settings for a catalog in memory whose tables support MERGE, as AUTO CDC needs it."""
    return {
        "spark.jars": str(jar),
        f"spark.sql.catalog.{CATALOG}": "org.apache.spark.sql.connector.catalog"
        ".SharedTablesInMemoryRowLevelOperationTableCatalog",
    }
