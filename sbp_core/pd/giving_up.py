"""Who wants publications to be given up, and whether they can be.

Nobody but the range server knows whether something can still be published. So a wish waits for what
its server says next: that the records are lost, or that they are published, or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sbp_core.errors import DeadlineExceededError

_UNANSWERED: Final = DeadlineExceededError("its range server has not answered yet")
_STOPPED: Final = DeadlineExceededError("the placement driver is about to stop")

PublicationKey = tuple[int, int]
"""(decision's number, stream id)."""


class GiveUpWishes:
    """Wishes to give publications up, and pauses between the tries to publish, which they end."""

    def __init__(self) -> None:
        self._wishes: dict[PublicationKey, asyncio.Future[Exception | None]] = {}
        self._pauses: dict[PublicationKey, asyncio.Event] = {}

    async def wish(self, key: PublicationKey, timeout_ms: float) -> Exception | None:
        """Return why a publication is not given up; None if it is, or is published.

        Who waits no longer wants nothing any more.
        """
        answer = self._wishes.setdefault(key, asyncio.get_running_loop().create_future())
        if key in self._pauses:
            self._pauses[key].set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(answer)
        except (TimeoutError, asyncio.CancelledError) as end:
            if self._wishes.get(key) is answer:
                self.answer(key, _UNANSWERED)
            if isinstance(end, asyncio.CancelledError):
                raise
            return await answer

    @contextmanager
    def granting(self, key: PublicationKey) -> Iterator[bool]:
        """Whether somebody wants a publication to be given up: if so, it is, or why not is raised.

        Who wants it is told afterwards.
        """
        wish = self._wishes.pop(key, None)
        reason: Exception | None = _STOPPED
        try:
            yield wish is not None
        except Exception as error:
            reason = error
            raise
        else:
            reason = None
        finally:
            if wish is not None:
                wish.set_result(reason)

    def answer(self, key: PublicationKey, reason: Exception | None) -> None:
        """Tell who wants it why a publication is not given up; None if it needs nothing more."""
        wish = self._wishes.pop(key, None)
        if wish is not None:
            wish.set_result(reason)

    def stop(self) -> None:
        """Tell all that nothing is given up now."""
        for key in list(self._wishes):
            self.answer(key, _STOPPED)

    async def pause(self, key: PublicationKey, seconds: float) -> None:
        """Wait, until somebody wants the publication to be given up at most."""
        is_wished = self._pauses.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await is_wished.wait()
        except TimeoutError:
            pass
        finally:
            del self._pauses[key]
