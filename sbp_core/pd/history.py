"""The commits that a metadata store has had, and so whether it is older than it was.

Each time a store is opened to be changed it begins a *life* with a random id. A commit number and
the id of the life it was made in name one commit for ever: a store that was put back to an earlier
copy counts on from there in another life. A store that a person accepted, though commits are
missing, begins a new *epoch*. The commits of the epochs before it are never asked for again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_LIFE_BYTES: Final = 8
LIFE_ID_LENGTH_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class CommitId:
    """One commit of a metadata store. Without a life it stands for no commit at all."""

    number: int = 0
    life_id: str = ""

    def __str__(self) -> str:
        return f"commit {self.number} of life {self.life_id}" if self.life_id else "no commit"


NO_COMMIT: Final = CommitId()


@dataclass(frozen=True, slots=True)
class Life:
    """What was done between two openings of a store: the commits from `first_commit` on."""

    life_id: str
    first_commit: int

    @property
    def epoch(self) -> str:
        """The epoch of the life."""
        return epoch_of(self.life_id)


class History:
    """The lives of a store, the oldest first, and its last commit."""

    def __init__(self, lives: Sequence[Life], last_number: int) -> None:
        self._epoch = lives[-1].epoch if lives else ""
        self._epochs = {life.epoch for life in lives}
        ends = [after.first_commit - 1 for _, after in pairwise(lives)]
        self._ends = (
            {life.life_id: end for life, end in zip(lives, [*ends, last_number], strict=True)}
            if lives
            else {}
        )
        self.last: Final = CommitId(last_number, lives[-1].life_id if lives else "")

    def has(self, commit: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""
        if not commit.life_id:
            return True
        epoch = epoch_of(commit.life_id)
        if epoch in self._epochs and epoch != self._epoch:
            return True
        return commit.number <= self._ends.get(commit.life_id, -1)


def new_life_id(epoch: int) -> str:
    """Return a fresh id of a life within an epoch."""
    return f"{epoch:x}-{secrets.token_hex(_LIFE_BYTES)}"


def epoch_of(life_id: str) -> str:
    """Return the part of a life's id that names its epoch."""
    return life_id.partition("-")[0]
