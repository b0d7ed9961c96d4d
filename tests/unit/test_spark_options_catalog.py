"""Options of a read of metadata, and where they are refused."""

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.options.endpoints import CatalogTable, is_table_given
from sbp_spark.options.sink import parse_sink_options
from sbp_spark.options.source import parse_catalog_options
from tests.support.spark import GOOD, faults

ENDPOINT = {"endpoint": "pd:12378"}


def catalog_faults(**options):
    with pytest.raises(ConfigurationError) as raised:
        parse_catalog_options(options)
    return str(raised.value).splitlines()[1:]


@pytest.mark.parametrize("table", list(CatalogTable))
def test_every_table_can_be_named_in_any_case(table):
    options = {**ENDPOINT, "TABLE": table.value.upper()}
    assert is_table_given(options)
    assert parse_catalog_options(options).table is table
    assert not is_table_given(GOOD)


def test_all_faults_are_named_at_once():
    lines = catalog_faults(table="tables", streams="a", minPartitions="0", kafka="x")
    assert len(lines) == 5
    for told in (
        "table is 'tables'; expected streams or ranges or cursors",
        "endpoint is missing",
        "streams is given beside table",
        "minPartitions is given beside table",
        "'kafka' is not an option",
    ):
        assert any(told in line for line in lines)
    (line,) = catalog_faults(**ENDPOINT, table="")
    assert "table is empty" in line


def test_a_stream_and_a_sink_have_no_tables():
    assert any("table is for batches only" in line for line in faults({**GOOD, "table": "ranges"}))
    with pytest.raises(ConfigurationError, match="table is for reading only"):
        parse_sink_options({**ENDPOINT, "stream": "a", "table": "ranges"})
