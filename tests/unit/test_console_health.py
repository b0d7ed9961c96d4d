"""Problems that the overview lists: what is wrong, and what to do."""

from __future__ import annotations

from sbp_core import limits
from sbp_core.client import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.operating.samples import Ends, Lags, Samples
from sbp_core.web.console.health import (
    Severity,
    cluster_problems,
    driver_problems,
    group_problems,
    sampling_problems,
    txn_problems,
)
from sbp_core.web.console.histories import STALE_SECONDS


def server(server_id=1, *, free=None, is_live=True, **options):
    place = f"h{server_id}:1"
    return RangeServerInfo(server_id, place, None, is_live, free, 1, 0, 0, 0, 0, **options)


def test_a_cluster_in_good_order_has_no_problems():
    info = ClusterInfo([server(free=2**40), server(2)], 0, 0)
    assert cluster_problems(info) == []
    assert group_problems(Lags.of(0, {("g", 1): 5}), {}) == []
    assert txn_problems(0) == driver_problems([PlacementDriverInfo("h:1", True)], {}) == []


def test_appends_that_stand_still_are_a_failure_with_its_cause():
    info = ClusterInfo([], 0, 0, halted_count=2, halted=((7, 0),), halt_cause="down: h1; start it")
    (problem,) = cluster_problems(info)
    assert problem.level is Severity.FAILURE
    assert problem.what == "appends stand still in 2 open ranges (stream 7 range 0, ...)"
    assert problem.remedy == "down: h1; start it."


def test_servers_that_are_silent_or_short_of_disk_are_named():
    low, floor = limits.PLACEMENT_DISK_FREE_BYTES - 1, limits.DISK_FREE_FLOOR_BYTES - 1
    servers = [
        server(1, is_live=False),
        server(2, is_live=False, is_retired=True),
        server(3, free=low),
        server(4, free=floor),
    ]
    found = cluster_problems(ClusterInfo(servers, 0, 0))
    assert [(each.level, each.what.split(" (")[0]) for each in found] == [
        (Severity.FAILURE, "range server 1"),
        (Severity.WARNING, "range server 3"),
        (Severity.FAILURE, "range server 4"),
    ]
    assert all(each.remedy for each in found)


def test_groups_that_lost_records_are_listed_up_to_a_few():
    lost = {(f"g/{index}", 1): index + 1 for index in range(8)}
    first, *_, last = group_problems(Lags.of(0, {}, lost), {1: "orders"})
    assert first.what == "group g/7 lost 8 records of stream orders"
    assert first.link == "/groups/g%2F7"
    assert last.what == "3 more cursors lost records"


def test_old_numbers_are_said_to_be_old():
    samples = Samples()
    samples.error = "nobody answers"
    assert sampling_problems(samples, 0)[0].what.endswith("there are none yet")
    samples.note(Ends.of(0, {}))
    assert sampling_problems(samples, STALE_SECONDS * 1000) == []
    (problem,) = sampling_problems(samples, STALE_SECONDS * 1000 + 1000)
    assert (problem.remedy, "16 s old" in problem.what) == ("nobody answers.", True)
