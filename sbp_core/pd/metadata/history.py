"""The commits that a metadata store has had, and so whether it is older than it was.

Each time a store is opened to be changed it begins a *life* with a random id. A commit number and
the id of the life it was made in name one commit for ever: a store that was put back to an earlier
copy counts on from there in another life. A store that a person accepted, though commits are
missing, begins a new *epoch* with a higher number. The commits of lower epochs are never asked for
again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits

_LIFE_BYTES: Final = 8
_LIFE_ID: Final = re.compile(rf"[0-9a-f]{{1,8}}-[0-9a-f]{{{2 * _LIFE_BYTES}}}")


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
    def epoch(self) -> int:
        """The number of its epoch."""
        return epoch_of(self.life_id)


class History:
    """The lives of a store, the oldest first, and its last commit."""

    def __init__(self, lives: Sequence[Life], last_number: int) -> None:
        self._epoch = lives[-1].epoch if lives else -1
        following = [after.first_commit for after in lives[1:]]
        self._next_commits = dict(
            zip((life.life_id for life in lives), [*following, last_number + 1], strict=True)
            if lives
            else ()
        )
        self.last: Final = CommitId(last_number, lives[-1].life_id) if lives else NO_COMMIT

    def has(self, commit: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""
        if not commit.life_id or epoch_of(commit.life_id) < self._epoch:
            return True
        return commit.number < self._next_commits.get(commit.life_id, -1)


def new_life_id(epoch: int) -> str:
    """Return a fresh id of a life within an epoch."""
    return f"{epoch:x}-{secrets.token_hex(_LIFE_BYTES)}"


def is_life_id(text: str) -> bool:
    """Whether a peer's text can be the id of a life."""
    return len(text) <= limits.STORE_LIFE_LENGTH_MAX and _LIFE_ID.fullmatch(text) is not None


def epoch_of(life_id: str) -> int:
    """Return the number of the epoch of a life."""
    return int(life_id.partition("-")[0], 16)
