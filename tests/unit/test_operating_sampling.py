"""Samples of the console: rates, their history, and for whom the cluster is asked."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from itertools import count, pairwise

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
from sbp_core.operating.samples import SPAN_SECONDS, STEPS, Ends, Lags, Samples, step_seconds
from sbp_core.web.console.histories import LOOKED_SECONDS, SAMPLED_MAX, Sampler
from sbp_core.web.console.overview import summarize


def test_a_rate_is_of_streams_known_at_both_times_and_never_negative():
    before = Ends.of(1_000, {1: 100, 2: 50, 3: None, 4: 900})
    after = Ends.of(3_000, {1: 300, 3: 70, 4: 100, 5: 9})
    assert after.since(before) == {1: 100.0, 4: 0.0}
    assert [after.maybe_end(each) for each in (1, 2, 3, 6)] == [300, None, 70, None]


def test_a_day_of_history_is_the_coarser_the_older_it_is_and_bounded():
    samples, last = Samples(), 2 * int(SPAN_SECONDS)
    for second in range(0, last, 60):
        ends = Ends.of(second * 1000.0, {1: second * 10, 2: 7})
        samples.note(ends)
        samples.note_lags(Lags.of(ends.at_ms, {("g", 1): second}, {("g", 1): 1}))
    for kept in (samples.history, samples.lags):
        ages = [(last - each.at_ms / 1000) for each in kept]
        assert len(kept) <= 1 + sum(int(age / step) for age, step in STEPS)
        assert SPAN_SECONDS - 300 <= ages[0] <= SPAN_SECONDS + 60
        gaps = [older - newer for older, newer in pairwise(ages)]
        assert all(
            gap <= max(2 * step_seconds(age), 60) for gap, age in zip(gaps, ages, strict=False)
        )
    assert [bool(each.lost) for each in samples.lags[-2:]] == [False, True]
    assert len({id(each.stream_ids) for each in samples.history}) == 1
    assert {rate for _, rate in samples.sum_over_time()} == {10.0}


def test_rates_over_time_are_those_of_each_stream_since_a_time():
    samples = Samples()
    for second, ends in ((0, {1: 0}), (10, {1: 50, 3: None}), (20, {1: 150, 3: 8}), (30, {3: 18})):
        samples.note(Ends.of(second * 1000.0, ends))
    rates = {1: [(10_000.0, 5.0), (20_000.0, 10.0)], 2: [], 3: [(30_000.0, 1.0)]}
    assert samples.rates_over_time([1, 2, 3]) == rates
    assert samples.rates_over_time([1], 10_000.0) == {1: rates[1][1:]}
    assert samples.sum_over_time() == [(10_000.0, 5.0), (20_000.0, 10.0), (30_000.0, 1.0)]


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
    assert [rate for _, rate in samples.sum_over_time()] == [100.0, 0.0, 10.0]


def test_lags_are_summed_by_group_and_the_largest_by_stream():
    lags = Lags.of(0, {("b", 1): 7, ("a", 2): 6, ("a", 1): 5})
    assert lags.by_group == {"a": 11, "b": 7}
    assert [lags.maybe_lag("a", each) for each in (1, 2, 3)] == [5, 6, None]
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


def test_clients_are_sampled_while_they_are_wanted_and_the_last_of_them_make_room():
    async def body():
        held = []

        @contextmanager
        def hold(client):
            held.append(client)
            yield
            held.remove(client)

        clock, stopping = [0.0], asyncio.Event()
        sampler, open_sessions = Sampler(stopping, lambda: clock[0], hold), {"user"}
        first, others = Cluster(), [Cluster() for _ in range(SAMPLED_MAX)]
        seen = sampler.look(first)
        assert sampler.look(first) is seen
        for each in others:
            sampler.look(each)
        assert sampler.look(first) is not seen  # it was forgotten for the last of the others
        kept = sampler.look(others[-1], lambda: "user" in open_sessions)
        assert sampler.look(others[-1], lambda: "user" in open_sessions) is kept
        clock[0] = LOOKED_SECONDS + 1
        sampler.look(first)
        assert sampler.look(others[-1], lambda: "user" in open_sessions) is kept
        clock[0] *= 2
        open_sessions.clear()
        sampler.look(first)
        await asyncio.sleep(0.01)
        assert others[-1] not in held
        assert first in held
        stopping.set()
        await asyncio.sleep(0.01)
        assert held == []

    asyncio.run(body())


def test_sampling_goes_on_while_nobody_looks():
    async def body():
        cluster = Cluster()
        passing = count(0.0, 2 * LOOKED_SECONDS)  # nobody has looked when the clock is asked again
        Sampler(asyncio.Event(), lambda: next(passing)).look(cluster)
        for _ in range(3):
            await cluster.was_asked.wait()
            cluster.was_asked.clear()

    asyncio.run(asyncio.wait_for(body(), 60))
