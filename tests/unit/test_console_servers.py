"""The servers of a cluster as the console shows them."""

from __future__ import annotations

from dataclasses import replace

from sbp_core.client import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.web.console.servers_view import drain_consequences, driver_rows, server_rows

LIVE = RangeServerInfo(1, "a:1", "r1", True, 10, 2, 1, 5, 2, 0)
SILENT = replace(LIVE, server_id=2, is_live=False)
RETIRED = replace(LIVE, server_id=3, is_retired=True)


def test_the_leader_is_first_and_one_that_does_not_answer_is_down():
    drivers = [PlacementDriverInfo("a:1", False), PlacementDriverInfo("b:1", True)]
    rows = driver_rows(drivers, {"a:1"})
    assert [(each.endpoint, each.is_leader, each.is_live) for each in rows] == [
        ("b:1", True, True),
        ("a:1", False, False),
    ]


def test_range_servers_have_the_state_that_the_command_shows():
    found = ClusterInfo([LIVE, SILENT, RETIRED], 0, 0)
    rows = server_rows(found, shows_retired=False)
    assert [(each.info.server_id, each.state, each.is_good) for each in rows] == [
        (1, "live", True),
        (2, "silent", False),
    ]
    assert [each.state for each in server_rows(found, shows_retired=True)][-1] == "retired"
    assert not any(each.drain for each in rows)


def test_a_drain_is_followed_to_its_end():
    draining = replace(LIVE, is_draining=True)
    moved = replace(draining, led_ranges=0, copied_ranges=0, sealed_ranges=2)
    empty = replace(moved, sealed_ranges=0, unreplicated_ranges=0)
    rows = server_rows(ClusterInfo([draining, moved, empty], 0, 0), shows_retired=False)
    assert [each.state for each in rows] == ["live draining"] * 3
    assert [each.drain for each in rows] == [
        "range server 1 still has 3 open ranges, and 3 sealed ones to be copied",
        moved.drain_remark,
        "range server 1 is drained: it has no ranges, and can be stopped",
    ]


def test_what_a_drain_will_do_is_counted_before():
    said = " ".join(drain_consequences(LIVE, 1))
    assert "3 open ranges there: sealed" in said
    assert "3 sealed ranges with other replicas: copied" in said
    assert "2 sealed ranges with one replica: not copied" in said
    assert "one replica" not in " ".join(
        drain_consequences(replace(LIVE, unreplicated_ranges=0), 1)
    )


def test_the_drain_of_the_only_server_is_warned_of():
    warning = "No other server can be given ranges now"
    assert warning in " ".join(drain_consequences(LIVE, 0))
    assert warning not in " ".join(drain_consequences(LIVE, 1))
    draining, full = replace(LIVE, is_draining=True), replace(LIVE, disk_free_bytes=0)
    assert [each.is_usable for each in (LIVE, SILENT, draining, full)] == [True, *[False] * 3]
