"""Where Spark finds `format("sbp")`: it asks every installed package named pyspark_* for this.

A package that fails to import here would hide all others, so the connector itself is imported only
when Spark makes a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from sbp_spark.datasource import SbpDataSource


class DefaultSource(DataSource):
    """Stands for the connector's data source, which it returns when Spark makes one."""

    def __new__(cls, options: dict[str, str]) -> SbpDataSource:  # type: ignore[misc]
        """Return the connector's data source."""
        from sbp_spark.datasource import SbpDataSource

        return SbpDataSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "sbp"
