"""`sbp cluster`: placement drivers, range servers, and replicas that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from sbp_core.cli import cluster_commands
from sbp_core.cli.main import main
from sbp_core.wire.headers import (
    DescribePlacementDriverClusterResponse,
    DescribeServersResponse,
    DrainServersResponse,
    HaltedRanges,
    RangeId,
    RangeServer,
    ServerDescription,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.placement_driver import cluster_of
from tests.support.scripted_peer import ScriptedPeer

RUNNING = ServerDescription(RangeServer(1, "h:1"), is_live=True, led_range_cnt=2)
SILENT = ServerDescription(RangeServer(2, "h:2"), sealed_range_cnt=1)
RETIRED = ServerDescription(RangeServer(3, "h:3"), is_retired=True)


@pytest.fixture
def shown(peer: ScriptedPeer, capsys) -> Callable[..., list[str]]:
    """Runs a command against a placement driver of which another one is down."""
    down = ScriptedPeer()
    down.close()
    drivers = DescribePlacementDriverClusterResponse(
        cluster=cluster_of(peer.endpoint, down.endpoint)
    )
    peer.script(Opcode.DESCRIBE_PD_CLUSTER, lambda exchange: exchange.answer(drivers))

    def run(*words: str, servers=(RUNNING, SILENT, RETIRED), later=None, **counts) -> list[str]:
        peer.script(
            Opcode.DESCRIBE_SERVERS,
            *(
                lambda exchange, each=each: exchange.answer(
                    DescribeServersResponse(servers=each, **counts)
                )
                for each in (servers, later or servers)
            ),
        )
        assert main([*words, "--endpoint", peer.endpoint]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_a_placement_driver_that_does_not_answer_is_down(shown) -> None:
    lines = [line.split()[1:] for line in shown("cluster")[1:3]]
    assert sorted(lines) == [["-", "down"], ["leader", "live"]]
    listed = [json.loads(line) for line in shown("cluster", "--json")]
    assert all(each["is_live"] == each["is_leader"] for each in listed[:2])


def test_a_range_server_that_was_replaced_is_listed_on_demand(shown) -> None:
    assert [line.split()[0] for line in shown("cluster")[5:]] == ["1", "2"]
    assert [line.split()[0] for line in shown("cluster", "--all")[5:]] == ["1", "2", "3"]
    for words, ids in (((), [1, 2]), (("--all",), [1, 2, 3])):
        listed = [json.loads(line) for line in shown("cluster", "--json", *words)]
        assert [each["server_id"] for each in listed if "server_id" in each] == ids


def test_what_a_drain_waits_for_is_shown(peer, shown, monkeypatch) -> None:
    monkeypatch.setattr(cluster_commands, "_WATCH_SECONDS", 0)
    waiting = replace(SILENT, is_draining=True, drain_obstacle="no room: make some")
    assert shown("cluster", servers=(waiting,))[-1] == (
        "the drain of range server 2 waits: no room: make some"
    )
    peer.script(Opcode.DRAIN_SERVERS, lambda exchange: exchange.answer(DrainServersResponse()))
    drained = replace(SILENT, sealed_range_cnt=0)
    lines = shown("cluster", "drain", "2", servers=(waiting,), later=(drained,))
    assert lines[1:] == [
        "it waits: no room: make some",
        "range server 2 is drained: it has no ranges, and can be stopped",
    ]


def test_the_replicas_that_open_ranges_lack_are_counted(shown) -> None:
    assert "lack" not in "".join(shown("cluster"))
    counts = {"lacking_range_cnt": 2, "missing_replica_cnt": 3}
    assert shown("cluster", **counts)[-1].startswith("3 replicas missing, in 2 open ranges: ")
    lacking = json.loads(shown("cluster", "--json", **counts)[-1])
    assert (lacking["ranges"], lacking["missing_replicas"]) == (2, 3)


def test_ranges_in_which_nothing_can_be_appended_are_shown_with_the_cause(shown) -> None:
    assert "stand still" not in "".join(shown("cluster"))
    counts = {
        "missing_sealed_replica_cnt": 4,
        "halted": HaltedRanges(3, (RangeId(7, 2), RangeId(9, 0)), "down: start it"),
    }
    lines = shown("cluster", **counts)
    assert lines[-1].startswith("sealed ranges lack 4 replicas: ")
    assert lines[-3] == (
        "appends stand still in 3 open ranges (stream 7 range 2, stream 9 range 0, ...): down:"
        " start it"
    )
    *_, sealed, halted, _ = map(json.loads, shown("cluster", "--json", **counts))
    assert sealed["missing_replicas"] == 4
    assert (halted["ranges"], halted["some"]) == (3, [[7, 2], [9, 0]])
    assert halted["cause"] == "down: start it"


def test_what_a_lost_server_keeps_is_said_at_the_end_of_its_drain(peer, shown) -> None:
    peer.script(Opcode.DRAIN_SERVERS, lambda exchange: exchange.answer(DrainServersResponse()))
    lost = replace(SILENT, is_draining=True, unreplicated_range_cnt=1)
    (line,) = shown("cluster", "drain", "2", servers=(lost,))
    assert "it is down: start it with its data directory" in line
