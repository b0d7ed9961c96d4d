"""Log ids and positions that range servers reported; the highest position of a log counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sbp_core import limits
from sbp_core.errors import InvalidRequestError
from sbp_core.pd.log_marks import NO_POSITION, LogMarks, maybe_log_mark
from sbp_core.pd.metadata.store import StoreThread, open_store
from sbp_core.pd.model import LogMark
from tests.support.clock import ManualClock

A, B = "a" * 32, "b" * 32


def run(folder: Path, body) -> None:
    async def main() -> None:
        store = await StoreThread.open(lambda: open_store(folder))
        clock = ManualClock()
        try:
            await body(store, LogMarks(store, clock), clock)
        finally:
            await store.close()

    asyncio.run(main())


async def kept(store: StoreThread, server_id: int = 1) -> LogMark | None:
    return await store.run(lambda each: each.servers.maybe_log_mark(server_id))


def test_the_highest_position_counts(tmp_path: Path) -> None:
    async def body(store, marks, clock):
        assert await marks.note(LogMark(1, "", 100)) == NO_POSITION
        assert await marks.note(LogMark(1, A, 300)) == 100
        assert await marks.note(LogMark(1, A, 200)) == 300
        assert await marks.promised(LogMark(1, A, 0)) == 300
        assert await marks.promised(LogMark(2, A, 0)) == NO_POSITION

    run(tmp_path, body)


def test_another_log_is_refused(tmp_path: Path) -> None:
    async def body(store, marks, clock):
        await marks.note(LogMark(1, A, 100))
        for ask in (marks.note, marks.promised):
            with pytest.raises(InvalidRequestError, match=f"{B}, and had {A}, which was synced"):
                await ask(LogMark(1, B, 1000))
        assert await marks.note(LogMark(1, "", 100)) == 100  # the id may be lost

    run(tmp_path, body)


def test_a_restart_forgets_little_and_growth_costs_few_commits(tmp_path: Path) -> None:
    async def body(store, marks, clock):
        commits = 0

        for position in range(100, 200):
            before = await kept(store)
            await marks.note(LogMark(1, A, position))
            commits += await kept(store) != before
            clock.advance(limits.HIGH_WATER_KEPT_INTERVAL_MS // 10)
        assert commits == 10
        assert await kept(store) == LogMark(1, A, 190)
        assert await LogMarks(store, clock).promised(LogMark(1, A, 0)) == 190
        await marks.flush()
        again = LogMarks(store, clock)
        assert await again.promised(LogMark(1, A, 0)) == 199

    run(tmp_path, body)


@pytest.mark.parametrize("log_id", ["x", "g" * 32, "A" * 32, "a" * 33])
def test_texts_that_are_no_id_are_refused(log_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="log_id of a HEARTBEAT must be 32"):
        maybe_log_mark(1, log_id, 5)


def test_a_peer_that_says_nothing_is_held_to_nothing() -> None:
    assert maybe_log_mark(1, None, -1) is None
    assert maybe_log_mark(1, None, 0) == LogMark(1, "", 0)
