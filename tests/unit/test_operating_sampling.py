"""Samples of the console: rates, their history, and for whom the cluster is asked."""

from __future__ import annotations

import asyncio

from sbp_core.client import (
    BoundsView,
    CursorInfo,
    GroupInfo,
    MetadataChanges,
    Reach,
    StreamBounds,
    StreamInfo,
)
from sbp_core.errors import ConnectError, PermissionDeniedError
from sbp_core.operating.samples import HISTORY_SECONDS, SPAN_SECONDS, Ends, Lags, Samples
from sbp_core.web.console.overview import summarize
from sbp_core.web.console.sampling import LOOKED_SECONDS, SAMPLED_MAX, Sampler


def test_a_rate_is_of_streams_known_at_both_times_and_never_negative():
    before = Ends.of(1_000, {1: 100, 2: 50, 3: None, 4: 900})
    after = Ends.of(3_000, {1: 300, 3: 70, 4: 100, 5: 9})
    assert after.since(before) == {1: 100.0, 4: 0.0}
    assert [after.maybe_end(each) for each in (1, 2, 3, 6)] == [300, None, 70, None]


def test_history_is_coarse_and_bounded():
    samples = Samples()
    for second in range(0, 3_600, 2):
        samples.note(Ends.of(second * 1000.0, {1: second * 10}))
    assert len(samples.history) == SPAN_SECONDS / HISTORY_SECONDS + 1
    assert samples.rates() == {1: 10.0}
    rates = samples.rates_over_time(1)
    assert {rate for _, rate in rates} == {10.0}
    assert rates[-1][0] - rates[0][0] <= SPAN_SECONDS * 1000


def test_streams_grow_by_bytes_between_two_sizes():
    samples = Samples()
    samples.note_sizes(1_000, {1: 100, 2: 900})
    assert samples.byte_rates() == {}
    samples.note_sizes(3_000, {1: 300, 2: 100, 3: 5})  # records of stream 2 were removed
    assert (samples.sizes[1], samples.byte_rates()) == (300, {1: 100.0, 2: 0.0})


def test_a_restored_cluster_does_not_look_like_appends():
    samples = Samples()
    for second, end in ((0, 1_000), (10, 2_000), (20, 500), (30, 600)):
        samples.note(Ends.of(second * 1000.0, {1: end}))
    assert [rate for _, rate in samples.rates_over_time()] == [100.0, 0.0, 10.0]


def test_lags_are_summed_by_group_and_the_largest_by_stream():
    lags = Lags(0, {("a", 1): 5, ("a", 2): 6, ("b", 1): 7}, {})
    assert lags.by_group() == {"a": 11, "b": 7}
    assert lags.by_stream() == {1: 7, 2: 6}


class Cluster:
    """The answers that a client would get, and the questions."""

    def __init__(self):
        self.is_down = False
        self.may_list_groups = True
        self.asked = []
        self.was_asked = asyncio.Event()

    async def stored_bytes(self, stream_ids, *, timeout_ms):
        return dict.fromkeys(stream_ids, 100)

    async def metadata_changes(self):
        return MetadataChanges(1, None)

    async def list_streams(self):
        return [StreamInfo(each, f"s{each}", 1, 0, 0) for each in (1, 2)]

    async def find_streams(self, stream_ids):
        return [each for each in await self.list_streams() if each.stream_id in stream_ids]

    async def watch_bounds(self, stream_ids, earlier):
        self.asked.append("watch_bounds")
        if self.is_down:
            raise ConnectError("refused")
        return BoundsView({each: StreamBounds(each, 10, 100) for each in stream_ids})

    async def reach(self, positions, *, timeout_ms, spared):
        self.asked.append("reach")
        return {1: Reach(1, 10, 120), 2: Reach(2, 10, None)}

    async def list_groups(self):
        if not self.may_list_groups:
            raise PermissionDeniedError.of("no")
        return [GroupInfo("g", 0)]

    async def describe_cursors(self, group):
        return [CursorInfo(1, 4, 0), CursorInfo(9, 0, 0)]

    async def range_servers(self):
        self.was_asked.set()
        raise PermissionDeniedError.of("only administrators")


async def sampled(cluster):
    """Return the samples once the cluster was asked for all there is."""
    samples = Sampler(asyncio.Event()).look(cluster)
    await asyncio.wait_for(cluster.was_asked.wait(), 60)
    return samples


def test_a_sample_has_ends_and_lags_and_the_records_that_a_group_lost():
    samples = asyncio.run(sampled(Cluster()))
    assert samples.newest.maybe_end(2) == 100
    assert (samples.lags[-1].records, samples.lags[-1].lost) == ({("g", 1): 90}, {("g", 1): 6})
    assert samples.stuck_txns is None


def test_a_server_that_is_down_leaves_the_other_streams_known():
    cluster = Cluster()
    cluster.is_down = True
    samples = asyncio.run(sampled(cluster))
    assert cluster.asked == ["watch_bounds", "reach"]
    assert (samples.newest.maybe_end(1), samples.newest.maybe_end(2)) == (120, None)
    assert samples.error is None
    assert not summarize(samples, 0)["is_complete"]


def test_nothing_is_said_to_be_none_before_it_was_asked_for():
    found = summarize(Samples(), 0)
    names = ("stream_count", "record_count", "rate", "byte_rate", "lag")
    assert [found[each] for each in names] == [None] * 5


def test_who_may_not_see_groups_sees_rates():
    cluster = Cluster()
    cluster.may_list_groups = False
    samples = asyncio.run(sampled(cluster))
    assert (samples.newest.maybe_end(1), len(samples.lags), samples.error) == (100, 0, None)


def test_it_is_asked_for_those_who_look_and_not_for_more_than_that():
    async def body():
        clock = [0.0]
        sampler = Sampler(asyncio.Event(), lambda: clock[0])
        first, others = Cluster(), [Cluster() for _ in range(SAMPLED_MAX)]
        seen = sampler.look(first)
        assert sampler.look(first) is seen
        for each in others:
            sampler.look(each)
        assert sampler.look(first) is not seen  # it was forgotten for the last of the others
        kept = sampler.look(others[-1])
        clock[0] = LOOKED_SECONDS + 1  # nobody looked since
        assert sampler.look(others[-1]) is kept
        clock[0] += SPAN_SECONDS + 1
        assert sampler.look(others[-1]) is not kept

    asyncio.run(body())
