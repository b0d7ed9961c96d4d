"""kill -9 of Spark's driver: all its micro-batches together are the log, once, in its order.

A producer appends, and ranges are sealed, while the query lives and while it is dead. It goes on
from its checkpoint, endlessly or up to the available records, with other limits in each life.
"""

from collections import Counter

import pytest

from sbp_core.client import Client, FetchItem, StreamSpec
from sbp_core.records import decode_batch, split_envelopes
from tests.support.client import producing
from tests.support.queries import (
    TOO_SLOW,
    QueryProcess,
    Written,
    find_anomalies,
    is_batch_open,
    last_commit,
    written_batches,
)
from tests.support.spark import append_values, numbered
from tests.support.warm import WarmCluster

NAMES = ("first", "second", "third")
LIFE_SECONDS_MAX = 3.0
ENDLESS = {"processingTime": "0 seconds"}
AVAILABLE_NOW = {"availableNow": True}


@pytest.fixture
def client():
    """A client of a cluster of this test's own, whose sealed streams go on elsewhere."""
    with WarmCluster(range_servers=2) as cluster, Client(cluster.endpoint) as connected:
        connected.create_streams([StreamSpec(name) for name in NAMES])
        yield connected


class Queries:
    """A query of each source, with one checkpoint each, and the lives that they have together."""

    def __init__(self, folder, endpoint, sources=("sbp",), **options):
        self.life_count = 0
        self._sources = sources
        self._folder = folder
        self._options = {"endpoint": endpoint, "streams": ",".join(NAMES), **options}

    def begin(self, trigger, limits=None, **order):
        self.life_count += 1
        options = self._options | (limits or {})
        return QueryProcess(
            self._folder,
            self.life_count,
            sources=self._sources,
            options=options,
            trigger=trigger,
            **order,
        )

    def finish(self):
        """Go to the tail: a run that was cut short goes on to its own end, the next one further."""
        while (exit_code := self.begin(AVAILABLE_NOW, runs=2).wait_for_end()) != 0:
            assert exit_code == TOO_SLOW

    def is_batch_open(self):
        return is_batch_open(self._folder / "sbp" / "checkpoint")

    @property
    def last_commit(self):
        return last_commit(self._folder / "sbp" / "checkpoint")

    def batches(self, source="sbp"):
        return written_batches(self._folder / source)


def read_log(client, starts=None):
    """Every record from `starts` on, read without Spark."""
    found = []
    for bound in client.stream_bounds([each.stream_id for each in client.list_streams()]):
        start = offset = (starts or {}).get(bound.stream_id, bound.start_offset)
        while offset < bound.next_offset:
            (outcome,) = client.fetch([FetchItem(bound.stream_id, offset, None, 1 << 20)])
            assert outcome.error is None
            for envelope in split_envelopes(outcome.payload):
                values = decode_batch(envelope).column("value").to_pylist()
                found += [
                    Written(bound.stream_id, at, value.decode())
                    for at, value in enumerate(values, envelope.base_offset)
                    if at >= start
                ]
            offset = outcome.next_offset
    return found


@pytest.mark.timeout(900)  # a life begins with a JVM
def test_killed_at_any_time(tmp_path, client, rng, rounds):
    query = Queries(tmp_path, client.endpoint, startingOffsets="earliest")
    kills = Counter()
    triggers = {"endless": ENDLESS, "available now": AVAILABLE_NOW}
    with producing(client.endpoint, rng, NAMES, sealed=NAMES, seal_share=0.02):
        while kills["in all"] < rounds(2) or len(kills) < 4:
            assert query.life_count < 10 * rounds(2), f"not all kinds of kills: {kills}"
            kind = list(triggers)[query.life_count % 2]
            limits = {"maxRecordsPerTrigger": str(rng.randint(50, 500))}
            limits["minPartitions"] = str(rng.randint(1, 4))
            life = query.begin(triggers[kind], limits)
            if kills[kind]:
                life.wait_until_it(rng.choice(("starts", "writes", "has written", "has written")))
                exit_code = life.live(rng.choice((0, rng.uniform(0, LIFE_SECONDS_MAX))))
            else:  # in a micro-batch
                life.wait_until_it(rng.choice(("writes", "has written")))
                exit_code = life.live(0)
            if exit_code is None:
                life.kill()
                kills.update(["in all", kind])
                kills.update(["in a micro-batch"] if query.is_batch_open() else [])
            else:
                assert exit_code in {0, TOO_SLOW}
    query.finish()
    batches, log = query.batches(), read_log(client)
    replay_count = sum(len(lives) - 1 for lives in batches.values())
    print(f"lives {query.life_count}, kills {dict(kills)}; {len(log)} records in")
    print(
        f"{len(batches)} micro-batches, {replay_count} written again; {range_count(client)} ranges"
    )
    assert find_anomalies(batches, log) == set()


def range_count(client):
    ranges = client.list_ranges([each.stream_id for each in client.list_streams()])
    return sum(map(len, ranges.values()))


KINDS = {
    "sbp": set(),
    "sbp-forgetful": {"lost", "altered"},
    "sbp-greedy": {"altered", "doubled", "reordered"},
}


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_killed_in_the_first_micro_batch(tmp_path, client):
    """Its records are written again: the query starts where it did then, not where it would now.

    Sources that break that promise, or read beyond the end, are noticed.
    """
    append_to_all(client)
    limits = {"startingOffsets": "-5", "maxRecordsPerTrigger": "7"}
    queries = Queries(tmp_path, client.endpoint, tuple(KINDS), **limits)
    while (exit_code := queries.begin(ENDLESS, dies_after=0).wait_for_end()) > 0:
        assert exit_code == TOO_SLOW
    append_to_all(client)
    queries.finish()
    first_offsets = {each.stream_id: 5 for each in client.list_streams()}
    log = read_log(client, first_offsets)
    for source, kinds in KINDS.items():
        batches = queries.batches(source)
        assert len(batches[0]) >= 2
        assert find_anomalies(batches, log) == kinds, source


def append_to_all(client):
    for name in NAMES:
        append_values(client, name, numbered(0, 10))


ROWS = [Written(1, at, str(at)) for at in range(4)]


@pytest.mark.parametrize(
    ("batches", "kinds"),
    [
        ({0: [ROWS[:2]], 1: [ROWS[2:]]}, set()),
        ({0: [ROWS[:2]], 1: [ROWS[2:], ROWS[2:]]}, set()),
        ({0: [ROWS[:2]], 1: [ROWS[3:]]}, {"lost"}),
        ({0: [ROWS[:2]], 1: [ROWS[2:], ROWS[3:]]}, {"lost", "altered"}),
        ({0: [ROWS[:2]], 1: [ROWS[1:]]}, {"doubled"}),
        ({0: [ROWS[2:]], 1: [ROWS[:2]]}, {"reordered"}),
        ({0: [ROWS], 1: [[Written(1, 4, "")]]}, {"invented"}),
    ],
)
def test_each_anomaly_is_found(batches, kinds):
    assert find_anomalies(batches, ROWS) == kinds
