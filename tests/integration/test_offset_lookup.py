"""Offsets by time and cursors, between clients and real servers."""

import pytest

from sbp_core.client import NO_CURSOR, AppendItem, GroupInfo, StreamSpec
from sbp_core.errors import (
    ConfigurationError,
    NotFoundError,
)
from tests.support.cluster import rows_batch


async def append(client, stream_id, count=2, size=1):
    batch = rows_batch([bytes(size)] * count)
    (outcome,) = await client.append([AppendItem(stream_id, batch)])
    return outcome


# Both clients.


@pytest.fixture
def driver(make, cluster):
    return make(cluster.endpoint)


def new_streams(driver, count):
    return [each.stream_id for each in driver.do("create_streams", [StreamSpec(None)] * count)]


def test_lookups_of_both_clients(driver):
    one, empty = new_streams(driver, 2)
    (outcome,) = driver.do("append", [AppendItem(one, rows_batch([b"a", b"b"]))])
    time_us = outcome.append_time_ms * 1000
    assert driver.do("lookup_offsets", {one: time_us, empty: time_us}) == {one: 0, empty: 0}
    assert driver.do("lookup_offsets", {one: time_us + 1000}) == {one: 2}
    assert driver.do("lookup_offsets", {}) == {}
    assert driver.do("append_times", {one: 1, empty: 0}) == {
        one: outcome.append_time_ms,
        empty: None,
    }
    with pytest.raises(NotFoundError, match=f"stream {2**62}, stream {2**62 + 1}"):
        driver.do("lookup_offsets", {one: 0, 2**62: 0, 2**62 + 1: 0})
    for wrong in (-1, 2**63):
        with pytest.raises(ConfigurationError, match="is no time"):
            driver.do("lookup_offsets", {one: wrong})
        with pytest.raises(ConfigurationError, match="is no offset"):
            driver.do("append_times", {one: wrong})


def test_cursors_of_both_clients(driver):
    one, two, three = new_streams(driver, 3)
    group = f"group-{one}"
    assert driver.do("describe_cursors", group) == []
    driver.do("commit_cursors", group, {two: 5, one: 0})
    driver.do("commit_cursors", group, {two: 3})
    cursors = driver.do("describe_cursors", group)
    assert [(each.stream_id, each.next_offset) for each in cursors] == [(one, 0), (two, 3)]
    assert driver.do("describe_cursors", group, [two, three, one]) == cursors[::-1]
    latest = max(each.committed_at_ms for each in cursors)
    assert GroupInfo(group, latest) in driver.do("list_groups")
    driver.do("delete_streams", [two])
    assert driver.do("describe_cursors", group) == cursors[:1]
    driver.do("commit_cursors", group, {one: NO_CURSOR, three: NO_CURSOR})
    assert driver.do("describe_cursors", group) == []
    assert group not in {each.group for each in driver.do("list_groups")}


def test_more_cursors_than_a_frame_holds(driver):
    streams = new_streams(driver, 2_500)
    group = f"group-{streams[0]}"
    wanted = {stream_id: position for position, stream_id in enumerate(streams)}
    driver.do("commit_cursors", group, wanted)
    for asked in ((), streams):
        found = driver.do("describe_cursors", group, asked)
        assert {each.stream_id: each.next_offset for each in found} == wanted
    driver.do("delete_streams", streams)
    assert driver.do("describe_cursors", group) == []
