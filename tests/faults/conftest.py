"""Fixtures of the fault tests: a seed that can be set, a number of rounds, a journal, disks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.faults.workload import History
from tests.support.real_disks import (
    LARGE_BYTES,
    SMALL_BYTES,
    LoopDisk,
    SmallMemory,
    skipping_where_nothing_can_be_mounted,
)


@pytest.fixture
def rng() -> random.Random:
    """Chance, from SEED in the environment or from a seed that is printed."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1, 2**32))
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def rounds() -> Callable[[int], int]:
    """How many rounds to do: ROUNDS in the environment, or the test's own number."""
    return lambda default: int(os.environ.get("ROUNDS") or default)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """The journal of the test, kept in `history.jsonl`."""
    return History(tmp_path / "history.jsonl")


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """A file system that can lose power. Skips where file systems cannot be mounted."""
    with skipping_where_nothing_can_be_mounted():
        mounted = LoopDisk(tmp_path / "disk", tmp_path / "disk.img")
    yield mounted
    mounted.close()


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[SmallMemory]:
    """A folder that gets full. Skips likewise."""
    with skipping_where_nothing_can_be_mounted():
        mounted = SmallMemory(tmp_path / "memory", SMALL_BYTES)
    yield mounted
    mounted.unmount()


@pytest.fixture
def full_disk(small_memory: SmallMemory, tmp_path: Path) -> Iterator[LoopDisk]:
    """A file system that is larger than the folder of its image. Skips likewise."""
    with skipping_where_nothing_can_be_mounted():
        mounted = LoopDisk(tmp_path / "disk", small_memory.folder / "disk.img", LARGE_BYTES)
    yield mounted
    mounted.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a run of many ROUNDS take its time: a test's own timeout is for a few of them."""
    here = Path(__file__).parent
    for item in items:
        if os.environ.get("ROUNDS") and item.path.is_relative_to(here):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "timeout"]
            item.add_marker(pytest.mark.timeout(0))
