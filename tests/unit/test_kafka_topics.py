"""Which streams are the partitions of which topics, and which gateway serves each."""

import asyncio
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.kafka.peers import Node, Peers
from sbp_core.kafka.topics import Topics, topics_of


def stream(name, stream_id=0):
    return SimpleNamespace(name=name, stream_id=stream_id)


def names_of(*names):
    return {
        topic: [each.name for each in parts]
        for topic, parts in topics_of([stream(each) for each in names]).items()
    }


def test_streams_with_numbers_from_zero_are_partitions():
    assert names_of("t-1", "t-0", "t-2", "other") == {
        "t": ["t-0", "t-1", "t-2"],
        "other": ["other"],
    }


def test_streams_that_are_no_partitions_are_topics():
    assert names_of("t-1", "u-0", "u-2", "v-00", "-0", "w-0-0", None) == {
        "t-1": ["t-1"],
        "u": ["u-0"],
        "u-2": ["u-2"],
        "v-00": ["v-00"],
        "-0": ["-0"],
        "w-0": ["w-0-0"],
    }


def test_a_topic_of_partitions_hides_a_stream_of_its_name():
    assert names_of("t", "t-0") == {"t": ["t-0"]}


NAMES = st.sets(st.from_regex(r"[ab](-[012]){0,3}", fullmatch=True), max_size=25)


@given(names=NAMES)
def test_each_stream_is_one_partition_unless_a_topic_has_its_name(names):
    topics = names_of(*names)
    found = [each for parts in topics.values() for each in parts]
    assert len(found) == len(set(found))
    assert set(found) <= names
    assert {each for each in names if f"{each}-0" not in names} <= set(found)
    for topic, parts in topics.items():
        numbered = [f"{topic}-{index}" for index in range(len(parts))]
        assert parts in (numbered, [topic])


class Client:
    """A client that lists streams."""

    def __init__(self, *names):
        self.names = list(names)
        self.asked = 0

    async def metadata_changes(self, since):
        return SimpleNamespace(revision=len(self.names))

    async def list_streams(self):
        self.asked += 1
        return [stream(each, at) for at, each in enumerate(self.names)]


def test_callers_see_the_topics_that_match_a_pattern():
    async def body():
        client, topics = (
            Client("orders-0", "orders-1", "clicks", "secret"),
            Topics(("orders", "c*")),
        )
        assert set(await topics.all(client)) == {"orders", "clicks"}
        assert await topics.stream_id(client, "orders", 1) == 1
        assert await topics.stream_id(client, "orders", 2) is None
        assert await topics.stream_id(client, "orders", -1) is None
        assert await topics.stream_id(client, "secret", 0) is None
        found = await topics.topic_partition(client, [0, 1, 2, 3])
        assert found == {0: ("orders", 0), 1: ("orders", 1), 2: ("clicks", 0)}

    asyncio.run(body())


def test_topics_are_asked_for_once_and_again_after_a_change():
    async def body():
        client, topics = Client("a"), Topics()
        for _ in range(10):
            assert await topics.stream_id(client, "a", 0) == 0
        assert client.asked == 1
        client.names.append("b")
        topics.forget(client)
        assert await topics.stream_id(client, "b", 0) == 1
        assert client.asked == 2

    asyncio.run(body())


HOSTS = ["h1", "10.0.0.1", "::1", "a_b", "gateway-0." + "long." * 20]
NODES = st.lists(
    st.builds(Node, st.sampled_from(HOSTS), st.integers(1, 65_535)),
    min_size=2,
    max_size=8,
    unique=True,
)


@given(nodes=NODES)
def test_a_gateway_that_leaves_moves_only_its_own_partitions_and_groups(nodes):
    peers, gone = Peers(nodes[0]), nodes[-1]
    peers._learn(list(map(str, nodes)))
    before = {key: peers.server_of(key) for key in map(str, range(100))}
    groups = {key: peers.coordinator_of(key) for key in before}
    peers._learn([str(each) for each in nodes if each != gone])
    assert all(peers.server_of(key) == of for key, of in before.items() if of != gone)
    assert all(peers.coordinator_of(key) == of for key, of in groups.items() if of != gone)
    assert gone not in {*map(peers.server_of, before), *map(peers.coordinator_of, groups)}


@given(nodes=NODES)
def test_all_gateways_agree(nodes):
    views = [Peers(each) for each in nodes]
    for view in views:
        view._learn([*map(str, reversed(nodes)), "not a gateway", "x:y", ":1"])
    for key in map(str, range(20)):
        assert len({view.server_of(key) for view in views}) == 1
        assert sum(view.is_coordinator(key) for view in views) == 1
    assert {view.controller for view in views} == {min(nodes)}


def test_a_gateway_that_nobody_knows_any_more_is_still_its_own_peer():
    own = Node("h", 1)
    peers = Peers(own)
    peers._learn([])
    assert peers.nodes == (own,)
    assert peers.is_coordinator("g")


def test_each_of_several_gateways_has_a_share():
    nodes = [Node("h", port) for port in range(9092, 9096)]
    peers = Peers(nodes[0])
    peers._learn(list(map(str, nodes)))
    shares = [sum(peers.server_of(str(key)) == each for key in range(1_000)) for each in nodes]
    assert min(shares) > 150
