"""Which placement driver is asked next, and the cluster in `detail` that decides it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.client.operations.router import PlacementDrivers
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    NotFoundError,
    NotLeaderError,
    SbpError,
    StatusCode,
)
from sbp_core.wire.headers import PlacementDriverCluster, PlacementDriverNode, encode_header
from sbp_core.wire.status import maybe_cluster
from tests.support.placement_driver import cluster_of

GIVEN = "given:1"


def not_leader(*cluster: str | None, detail: bytes | None = None) -> NotLeaderError:
    """The answer of one that does not lead, and names the leader and the followers."""
    data = encode_header(cluster_of(*cluster)) if detail is None else detail
    return NotLeaderError(StatusCode.PD_NOT_LEADER, "no", data)


def after(*steps: tuple[str, SbpError]) -> tuple[str, ...]:
    drivers = PlacementDrivers(GIVEN)
    for asked, error in steps:
        drivers.on_error(asked, error)
    assert drivers.endpoint == drivers.known[0]
    return drivers.known


def test_the_cluster_survives_its_bytes() -> None:
    cluster = cluster_of("a:1", "b:2", "c:3")
    assert maybe_cluster(encode_header(cluster)) == cluster


@pytest.mark.parametrize("detail", [b"", b"\0", b"\xff" * 40, b"not a table at all"])
def test_invalid_cluster_details_count_as_absent(detail) -> None:
    assert maybe_cluster(detail) is None
    assert after((GIVEN, not_leader(detail=detail))) == (GIVEN,)


def test_the_leader_that_is_named_is_asked_next() -> None:
    assert after((GIVEN, not_leader("lead:1", "b:2"))) == ("lead:1", GIVEN, "b:2")


@pytest.mark.parametrize(
    "error",
    [ConnectError("x"), ConnectionLostError("x"), DeadlineExceededError("x")],
    ids=lambda error: type(error).__name__,
)
def test_when_the_leader_is_gone_the_given_one_is_asked_then_the_others(error) -> None:
    steps = [(GIVEN, not_leader("lead:1", GIVEN, "b:2")), ("lead:1", error)]
    assert after(*steps) == (GIVEN, "b:2", "lead:1")
    assert after(*steps, (GIVEN, error)) == ("b:2", "lead:1", GIVEN)


def test_an_answer_changes_nothing() -> None:
    found = NotFoundError(StatusCode.NOT_FOUND, "x")
    assert after((GIVEN, not_leader("lead:1")), ("lead:1", found)) == ("lead:1", GIVEN)


def test_the_failure_of_one_that_was_left_already_changes_nothing() -> None:
    steps = [(GIVEN, not_leader("lead:1")), (GIVEN, ConnectError("x"))]
    assert after(*steps) == ("lead:1", GIVEN)
    assert after(*steps, (GIVEN, not_leader("late:1"))) == ("lead:1", GIVEN)


def test_without_a_leader_the_next_one_is_asked() -> None:
    assert after((GIVEN, not_leader(None, "b:2"))) == ("b:2", GIVEN)
    assert after((GIVEN, not_leader(GIVEN, "b:2"))) == ("b:2", GIVEN), "names itself"
    assert after((GIVEN, not_leader(None))) == (GIVEN,)


def test_the_last_word_counts_but_the_given_one_stays() -> None:
    steps = [(GIVEN, not_leader("lead:1", "old:2")), ("lead:1", not_leader("new:3"))]
    assert after(*steps) == ("new:3", GIVEN, "lead:1")


@pytest.mark.parametrize(
    "address", [None, "", "here", "a:0", "a:b", "http://a:1", "a:1\n", "x" * 300 + ":1"]
)
def test_an_address_that_cannot_be_one_is_passed_over(address) -> None:
    nodes = (
        PlacementDriverNode("bad", address, is_leader=True),
        PlacementDriverNode("good", "b:2"),
    )
    error = not_leader(detail=encode_header(PlacementDriverCluster(nodes)))
    assert after((GIVEN, error)) == ("b:2", GIVEN)


addresses = st.sampled_from([GIVEN, "a:1", "b:2", "c:3", "d:4", "no address", None])
clusters = st.lists(
    st.builds(PlacementDriverNode, st.just("n"), addresses, st.booleans()), max_size=40
).map(tuple)
errors = st.one_of(
    clusters.map(lambda nodes: not_leader(detail=encode_header(PlacementDriverCluster(nodes)))),
    st.binary(max_size=20).map(lambda detail: not_leader(detail=detail)),
    st.just(ConnectError("x")),
    st.just(NotFoundError(StatusCode.NOT_FOUND, "x")),
)


@given(st.lists(st.tuples(st.booleans(), errors), max_size=20))
def test_whatever_peers_say_the_given_one_stays_known_and_has_its_turn(steps) -> None:
    drivers = PlacementDrivers(GIVEN)
    for is_late, error in steps:
        drivers.on_error("other:9" if is_late else drivers.endpoint, error)
        known = drivers.known
        assert GIVEN in known
        assert len(set(known)) == len(known) <= limits.PLACEMENT_DRIVERS_MAX + 2
        assert set(known) <= {GIVEN, "a:1", "b:2", "c:3", "d:4"}
    for _ in drivers.known:
        if drivers.endpoint == GIVEN:
            break
        drivers.on_error(drivers.endpoint, ConnectError("x"))
    assert drivers.endpoint == GIVEN


def test_one_that_is_down_is_passed_over_where_several_were_given() -> None:
    drivers = PlacementDrivers("a:1,b:2")
    assert drivers.known == ("a:1", "b:2")
    drivers.on_error("a:1", ConnectError("x"))
    assert drivers.endpoint == "b:2"
    assert drivers.is_passed_over(ConnectError("x"), {"a:1"})
    assert not drivers.is_passed_over(ConnectionLostError("x"), {"a:1"}), "it may have had effect"
    silence = DeadlineExceededError("x")
    assert drivers.is_passed_over(silence, {"a:1"}, is_repeatable=True)
    assert not drivers.is_passed_over(silence, {"a:1"}), "it may have had effect"
    drivers.on_error("b:2", not_leader("lead:3"))
    assert drivers.known == ("lead:3", "a:1", "b:2")
    drivers.on_error("lead:3", ConnectError("x"))
    drivers.on_error("a:1", ConnectError("x"))
    drivers.on_error("b:2", ConnectError("x"))
    assert not drivers.is_passed_over(ConnectError("x"), {"lead:3", "a:1", "b:2"}), "all were asked"
    assert not PlacementDrivers(GIVEN).is_passed_over(ConnectError("x"), set())


def test_learned_placement_drivers_come_after_the_current_one() -> None:
    drivers = PlacementDrivers(GIVEN)
    drivers.learn(cluster_of("lead:1", "b:2"))
    assert drivers.known == (GIVEN, "b:2", "lead:1")
    drivers.on_error(GIVEN, ConnectError("x"))
    drivers.learn(cluster_of("lead:1"))
    assert drivers.known == ("b:2", GIVEN, "lead:1")
