"""The rows of metadata while a range server is down."""

from __future__ import annotations

import pytest

from sbp_core.client import CursorInfo, GroupInfo
from sbp_spark.catalog_reader import table_rows
from sbp_spark.options.endpoints import CatalogTable
from tests.support.fake_streams import FakeCluster


class Groups(FakeCluster):
    """One group, that has read both streams up to offset 5."""

    def list_groups(self):
        return [GroupInfo("nightly", 1)]

    def describe_cursors(self, group):
        return [CursorInfo(stream_id, 5, 1) for stream_id in (1, 2)]


@pytest.fixture
def client():
    """Two streams; the server of the second is down."""
    cluster = Groups(a=[1, 100, 0, 50], b=[2, 200, 10, 30])
    cluster.away = {2}
    return cluster


def test_columns_from_a_server_that_is_down_are_null(client):
    rows = {row["stream"]: row for row in table_rows(client, CatalogTable.STREAMS)}
    assert (rows["a"]["start_offset"], rows["a"]["next_offset"]) == (0, 50)
    assert (rows["b"].get("start_offset"), rows["b"].get("next_offset")) == (None, None)
    assert rows["b"]["created"] == 200_000


def test_the_lag_behind_it_is_null(client):
    rows = {row["stream"]: row for row in table_rows(client, CatalogTable.CURSORS)}
    assert (rows["a"]["lag_records"], rows["a"]["lost_records"]) == (45, 0)
    assert (rows["b"].get("lag_records"), rows["b"].get("lost_records")) == (None, None)
    assert rows["b"]["next_offset"] == 5
    client.away = set()
    assert table_rows(client, CatalogTable.CURSORS)[1]["lost_records"] == 5
