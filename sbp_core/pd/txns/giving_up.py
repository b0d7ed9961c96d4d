"""Who wants publications to be given up, and whether they can be.

Nobody but the range server knows whether something can still be published. So a wish waits for what
its server says next: that the records are lost, or that they are published, or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sbp_core.errors import (
    InvalidRequestError,
    RequestTimeoutError,
    ShuttingDownError,
    StatusCode,
    StatusError,
    StorageError,
    TransportError,
)

UNANSWERED: Final = RequestTimeoutError(
    StatusCode.REQUEST_TIMEOUT, "its range server has not answered yet"
)
STOPPING: Final = ShuttingDownError(
    StatusCode.RS_SHUTTING_DOWN, "the placement driver is about to stop"
)
_TOLD_MAX: Final = 10
"""Streams that a message names."""
EARLIER_FIRST: Final = "an earlier batch has to be published there first, or given up"

PublicationKey = tuple[int, int]
"""(decision's number, stream id)."""

Reason = Exception | str
"""Why a publication is not given up."""


@dataclass(slots=True)
class _Wish:
    """That some want to give up a publication: what they are told, and how many they are."""

    answer: asyncio.Future[Exception | None]
    waiter_count: int = 0


class GiveUpWishes:
    """Wishes to give publications up, and pauses between the tries to publish, which they end."""

    def __init__(self) -> None:
        self._wishes: dict[PublicationKey, _Wish] = {}
        self._pauses: dict[PublicationKey, asyncio.Event] = {}

    async def wish(self, key: PublicationKey, timeout_ms: float) -> Exception | None:
        """Return why a publication is not given up; None if it is, or is published.

        UNANSWERED if nobody knows in time. When nobody waits any longer, nobody wants it any more.
        """
        wish = self._wishes.setdefault(key, _Wish(asyncio.get_running_loop().create_future()))
        wish.waiter_count += 1
        if key in self._pauses:
            self._pauses[key].set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(wish.answer)
        except TimeoutError:
            return UNANSWERED
        finally:
            wish.waiter_count -= 1
            if not wish.waiter_count and self._wishes.get(key) is wish:
                del self._wishes[key]

    @contextmanager
    def granting(self, key: PublicationKey) -> Iterator[bool]:
        """Whether somebody wants a publication to be given up: if so, it is, or why not is raised.

        Who wants it is told afterwards.
        """
        wish = self._wishes.pop(key, None)
        reason: Exception | None = STOPPING
        try:
            yield wish is not None
        except Exception as error:
            reason = error
            raise
        else:
            reason = None
        finally:
            if wish is not None:
                wish.answer.set_result(reason)

    def answer(self, key: PublicationKey, reason: Exception | None) -> None:
        """Tell who wants it why a publication is not given up; None if it needs nothing more."""
        wish = self._wishes.pop(key, None)
        if wish is not None:
            wish.answer.set_result(reason)

    def stop(self) -> None:
        """Tell all that nothing is given up now."""
        for key in list(self._wishes):
            self.answer(key, STOPPING)

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


def told(reasons: Mapping[int, Reason]) -> str:
    """Return why publications are not given up, by their streams, and what helps."""
    some = [
        f"stream {stream_id}: {reason}{_remedy(reason)}"
        for stream_id, reason in islice(reasons.items(), _TOLD_MAX)
    ]
    more = [f"and {len(reasons) - _TOLD_MAX} streams more"] if len(reasons) > _TOLD_MAX else []
    return "; ".join([*some, *more])


def refusal(batch: str, reasons: Mapping[int, Reason]) -> StatusError:
    """Return the error for a batch of which nothing is given up; it may be tried again, or not."""
    message = (
        f"{batch} waits, and is not given up: only what a range server says to be incomplete is."
        f" {told(reasons)}"
    )
    for unsettled in (STOPPING, UNANSWERED):
        if unsettled in reasons.values():
            return type(unsettled)(unsettled.code, message)
    return InvalidRequestError(StatusCode.INVALID_REQUEST, message)


def _remedy(reason: Reason) -> str:
    match reason:
        case TransportError():
            return " (it is published when that server is back)"
        case StorageError(code=StatusCode.RS_DATA_CORRUPTED):
            return " (stop the server that has it, run `sbp log repair`, then give up what is lost)"
    return ""
