"""Offsets by time and cursors, between clients and real servers."""

import pytest

from sbp_core.client import StreamSpec

# Both clients.


@pytest.fixture
def driver(make, cluster):
    return make(cluster.endpoint)


def new_streams(driver, count):
    return [each.stream_id for each in driver.do("create_streams", [StreamSpec(None)] * count)]


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
