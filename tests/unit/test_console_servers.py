"""The servers of a cluster as the console shows them."""

from __future__ import annotations

from dataclasses import replace

from sbp_core.client import RangeServerInfo
from sbp_core.web.console.servers import drain_facts

LIVE = RangeServerInfo(1, "a:1", "r1", True, 10, 2, 1, 5, 2, 0)
SILENT = replace(LIVE, server_id=2, is_live=False)


def test_what_a_drain_will_do_is_counted_before():
    said = " ".join(drain_facts(LIVE, 1))
    assert "3 open ranges there: sealed" in said
    assert "3 sealed ranges with other replicas: copied" in said
    assert "2 sealed ranges with one replica: not copied" in said
    assert "one replica" not in " ".join(drain_facts(replace(LIVE, unreplicated_ranges=0), 1))


def test_the_drain_of_the_only_server_is_warned_of():
    warning = "No other server can be given ranges now"
    assert warning in " ".join(drain_facts(LIVE, 0))
    assert warning not in " ".join(drain_facts(LIVE, 1))
    draining, full = replace(LIVE, is_draining=True), replace(LIVE, disk_free_bytes=0)
    assert [each.is_usable for each in (LIVE, SILENT, draining, full)] == [True, *[False] * 3]
