"""What the fault tests share: a seed that can be set, a number of rounds, and a journal."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from history import History


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
