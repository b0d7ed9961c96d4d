"""Bounds that are kept up by what changed are those that a full question is answered with."""

import asyncio
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, StreamSpec
from sbp_core.log.states.range_states import LoggedRange, RangeState
from sbp_core.rangeserver.hosted_ranges import RangeInput, RangeTable
from sbp_core.rangeserver.server import RangeServer
from sbp_core.settings.server_settings import RangeServerSettings
from sbp_core.wire.headers import RangeId, SealRangesRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, driver_at, rows_batch

STREAMS = 4
KEYS = st.tuples(st.integers(0, 2), st.integers(0, 1))


def told(table):
    """Return the state and the offsets of each range."""
    return {
        hosted.key: (
            hosted.state,
            hosted.start_offset,
            hosted.next_offset,
            hosted.end_offset,
        )
        for stream_id in range(3)
        if table.has_stream(stream_id)
        for hosted in table.ranges_of(stream_id)
    }


def do(table, states, key, step):
    """Let the log, or a request, change a range; the changes of states go one way."""
    known = states.get(key)
    if known is None:
        states[key] = LoggedRange(*key, 0, 0, RangeState.OPEN)
        table.publish(states[key])
    elif step in {RangeInput.SEAL, RangeInput.DELETE}:
        hosted = table.range_at(*key)
        if hosted.state is not RangeState.DELETED:
            table.move(hosted, step)
    else:
        start, tail = known.start_offset, known.next_offset
        if step is RangeInput.TRIM:
            start = min(start + 2, tail)
        else:
            tail += 3
        states[key] = LoggedRange(*key, start, tail, known.state)
        table.publish(states[key])


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(KEYS, st.sampled_from([*RangeInput, "restart", "look"]), st.integers(1, 7)),
        max_size=60,
    )
)
def test_only_changed_ranges_are_reported_after_that(steps):
    table, states = RangeTable(), {}
    view, revision = told(table), table.revision
    for key, step, count_max in steps:
        if step == "restart":
            table = RangeTable(states.values())
        elif step != "look":
            do(table, states, key, step)
            continue
        changed = table.maybe_changed(revision, count_max)
        now = told(table)
        if changed is None:
            view = now
        else:
            assert len(changed) <= count_max
            view |= {hosted.key: now[hosted.key] for hosted in changed}
            assert changed or revision == table.revision
        revision = table.revision
        assert view == now


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("trim"), st.integers(0, STREAMS - 1)),
    st.tuples(st.sampled_from(["seal", "seal behind", "delete"]), st.integers(0, STREAMS - 1)),
    st.tuples(st.sampled_from(["restart", "look"]), st.just(0)),
)


class Changes:
    """Streams of a real cluster that change behind the back of who watches them."""

    def __init__(self, cluster, folder, stream_ids):
        self.cluster = cluster
        self.stream_ids = stream_ids
        self._folder = folder
        self._sealed_behind = set()
        self._servers = [cluster.server]

    async def do(self, step, index, client):
        index %= len(self.stream_ids)
        stream_id = self.stream_ids[index]
        if step == "append":
            if stream_id in self._sealed_behind:  # which only the placement driver can go on from
                await client.seal_streams([stream_id])
                self._sealed_behind.remove(stream_id)
            await client.append([AppendItem(stream_id, rows_batch([b"x", b"y"]))])
        elif step == "trim":
            (held,) = await client.stream_bounds([stream_id])
            await client.trim_streams({stream_id: min(held.start_offset + 1, held.next_offset)})
        elif step == "seal":
            await client.seal_streams([stream_id])
        elif step == "seal behind":
            async with driver_at(self._servers[-1].endpoint, Path(self._folder) / "rs") as raw:
                await raw.ask(Opcode.SEAL_RANGE, SealRangesRequest(0, (RangeId(stream_id, -1),)))
            self._sealed_behind.add(stream_id)
        elif step == "delete" and len(self.stream_ids) > 1:
            await client.delete_streams([stream_id])
            self.stream_ids = [each for each in self.stream_ids if each != stream_id]
        elif step == "restart":
            await self.restart()

    async def restart(self):
        old = self._servers[-1]
        port = int(old.endpoint.rpartition(":")[2])
        await old.stop()
        server = RangeServer(
            RangeServerSettings(
                data_dir=self._folder / "rs",
                placement_driver=self.cluster.pd.endpoint,
                port=port,
            )
        )
        await server.start()
        self._servers.append(server)

    async def stop(self):
        for server in self._servers[1:]:
            await server.stop()


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(
    steps=[
        *((step, index) for index, step in enumerate(["append", "append", "trim", "seal"])),
        *(("append", 1), ("look", 0), ("trim", 1), ("seal behind", 1), ("append", 0)),
        *(("restart", 0), ("append", 2), ("append", 1), ("delete", 2), ("append", 3), ("seal", 0)),
    ]
)
@given(steps=st.lists(STEPS, max_size=14))
def test_a_watch_returns_what_a_new_request_returns(steps):
    async def run(folder):
        async with core_cluster(folder) as cluster, AsyncClient(cluster.pd.endpoint) as other:
            specs = [StreamSpec(f"s{number}") for number in range(STREAMS)]
            created = await other.create_streams(specs)
            changes = Changes(cluster, folder, [info.stream_id for info in created])
            try:
                view = None
                for step in [*steps, ("look", 0), ("look", 0)]:
                    await changes.do(*step, other)
                    view = await cluster.client.watch_bounds(changes.stream_ids, view)
                    async with AsyncClient(cluster.pd.endpoint) as fresh:
                        expected = await fresh.stream_bounds(changes.stream_ids)
                    assert list(view.bounds.values()) == expected
                again = await cluster.client.watch_bounds(changes.stream_ids, view)
                assert again.bounds is view.bounds
            finally:
                await changes.stop()

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(limits, "BOUNDS_WATCHED_MIN", 1),
    ):
        asyncio.run(asyncio.wait_for(run(Path(folder)), 120))
