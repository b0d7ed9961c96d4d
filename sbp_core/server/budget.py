"""The memory that all connections of a server share for requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A claim to `size` octets that waits for its turn; then `on_granted` is called, once."""

    size: int
    on_granted: Callable[[], None]


class Budget:
    """At most `bytes_max` octets, given out in the order in which they are claimed.

    What is there already is taken even beyond that; then claims wait until enough was given back.
    A claim is granted in any case when nothing else is taken.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._claims: deque[Claim] = deque()

    @property
    def taken_bytes(self) -> int:
        """Octets in use."""
        return self._taken_bytes

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._claims)

    def take(self, size: int) -> None:
        """Count octets that are there already."""
        self._taken_bytes += size

    def give_back(self, size: int) -> None:
        """Free octets, and grant the claims that fit now."""
        self._taken_bytes -= size
        self._grant()

    def maybe_wait(self, size: int, on_granted: Callable[[], None]) -> Claim | None:
        """Take `size` octets now and return None, or return the claim that waits for them."""
        if not self._claims and self._has_room(size):
            self._taken_bytes += size
            return None
        claim = Claim(size, on_granted)
        self._claims.append(claim)
        return claim

    def withdraw(self, claim: Claim) -> None:
        """Forget a claim that was not granted."""
        self._claims.remove(claim)
        self._grant()

    def _has_room(self, size: int) -> bool:
        return not self._taken_bytes or self._taken_bytes + size <= self._bytes_max

    def _grant(self) -> None:
        while self._claims and self._has_room(self._claims[0].size):
            claim = self._claims.popleft()
            self._taken_bytes += claim.size
            claim.on_granted()
