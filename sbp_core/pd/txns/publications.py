"""How committed batches become visible, stream by stream: the steps as a table.

A *publication* is the part of one decision in one stream. One END_TXN in one range makes it
visible: in the last range in which something of it was staged. If that range is sealed, the next
one takes its place, and the staged batches are copied there. A sealed range never publishes
anything new, so its refusal is final. But END_TXN is sent to each range before it is skipped: an
END_TXN whose answer was lost may have published there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sbp_core.errors import (
    InvalidRequestError,
    RangeSealedError,
    SbpError,
    StatusCode,
    StorageError,
    TxnEndedError,
    TxnIncompleteError,
)
from sbp_core.pd.txns.decisions import Part
from sbp_core.session.states import Machine, row
from sbp_core.wire.txn_id import copy_of


class PublicationState(enum.Enum):
    """How far a publication has come."""

    ENDING = "END_TXN is to be sent to the server of the range"
    COPYING = "the batches of earlier ranges are to be staged in this one"
    COPIED = "the copies are staged: END_TXN is to be sent again"
    STUCK = "it cannot be published as it was committed; it is retried until it can, or is given up"
    MOVING = "the range is sealed: the next one is to be found"
    PUBLISHED = "the records are visible"
    SETTLED = "it is recorded as published or given up, or the stream was deleted"


class PublicationInput(enum.Enum):
    """An event in the life of a publication."""

    DONE = "END_TXN published it, now or before"
    SEALED = "END_TXN is refused: the range is sealed"
    COPIES_LACKING = "END_TXN is refused: the batches of earlier ranges are not here yet"
    INCOMPLETE = "END_TXN is refused: other records are staged, or they were dropped"
    FAULT = "something else is wrong with the request, or what is staged cannot be read"
    COPIED = "the batches of earlier ranges are staged here"
    COPIES_REFUSED = "the range accepts no copies: it is sealed, or END_TXN was done since"
    MOVED = "the stream has a next range"
    RECORDED = "the store has recorded that it is published"
    GIVEN_UP = "it was given up on request, and the store has recorded that"
    STREAM_DELETED = "the stream was deleted"


_ENDING, _COPYING, _COPIED, _STUCK, _MOVING, _PUBLISHED, _SETTLED = PublicationState


_row: Final = partial(row, PublicationInput)

PUBLICATION: Final = Machine(
    "publication",
    PublicationState,
    PublicationInput,
    {
        _ENDING: _row(
            DONE=_PUBLISHED,
            SEALED=_MOVING,
            COPIES_LACKING=_COPYING,
            INCOMPLETE=_STUCK,
            FAULT=_STUCK,
            STREAM_DELETED=_SETTLED,
        ),
        _COPYING: _row(
            COPIED=_COPIED, COPIES_REFUSED=_ENDING, FAULT=_STUCK, STREAM_DELETED=_SETTLED
        ),
        _COPIED: _row(
            DONE=_PUBLISHED,
            SEALED=_MOVING,
            INCOMPLETE=_STUCK,
            FAULT=_STUCK,
            STREAM_DELETED=_SETTLED,
        ),
        _STUCK: _row(
            DONE=_PUBLISHED,
            SEALED=_MOVING,
            COPIES_LACKING=_COPYING,
            INCOMPLETE=_STUCK,
            FAULT=_STUCK,
            GIVEN_UP=_SETTLED,
            STREAM_DELETED=_SETTLED,
        ),
        _MOVING: _row(MOVED=_ENDING, STREAM_DELETED=_SETTLED),
        _PUBLISHED: _row(RECORDED=_SETTLED),
        _SETTLED: _row(),
    },
)


@dataclass(frozen=True, slots=True)
class Publication:
    """The parts of a decision in one stream, in their order, to be published in a range."""

    txn_number: int
    stream_id: int
    parts: tuple[Part, ...]
    range_index: int
    state: PublicationState = PublicationState.ENDING

    @classmethod
    def of(cls, txn_number: int, parts: Sequence[Part]) -> Publication:
        """Return the publication of some parts, one or more, of the same stream."""
        last = max(part.range_index for part in parts)
        return cls(txn_number, parts[0].stream_id, tuple(parts), last)

    @property
    def txn_ids(self) -> tuple[str, ...]:
        """The ids under which the parts are staged in the range."""
        return tuple(self.id_here(part) for part in self.parts)

    @property
    def record_count(self) -> int:
        """Records of all parts."""
        return sum(part.record_count for part in self.parts)

    @property
    def earlier(self) -> tuple[Part, ...]:
        """The parts that were staged in earlier ranges."""
        return tuple(part for part in self.parts if part.range_index < self.range_index)

    @property
    def leftovers(self) -> tuple[Part, ...]:
        """The parts that may still be staged once it is published: originals, copies in between."""
        return self._places(self.earlier, self.range_index)

    @property
    def remains(self) -> tuple[Part, ...]:
        """The parts that may still be staged once it is given up, also in its own range."""
        return self._places(self.parts, self.range_index + 1)

    def id_here(self, part: Part) -> str:
        """Return what a part is staged under in the range: its own id, or that of a copy."""
        return self._id_in(part, self.range_index)

    def after(self, received: PublicationInput) -> Publication:
        """Return the publication after an input that the table allows now."""
        state = PUBLICATION.maybe_next(self.state, received)
        assert state is not None, f"{received} while {self.state}"
        is_next = received is PublicationInput.MOVED
        return replace(self, state=state, range_index=self.range_index + is_next)

    def maybe_learned(self, error: SbpError | None) -> PublicationInput | None:
        """Return the input that follows from END_TXN, or from copying; None: retry."""
        match error:
            case None if self.state is _COPYING:
                return PublicationInput.COPIED
            case None:
                return PublicationInput.DONE
            case RangeSealedError() | TxnEndedError() if self.state is _COPYING:
                return PublicationInput.COPIES_REFUSED
            case RangeSealedError():
                return PublicationInput.SEALED
            case TxnIncompleteError() if self.state in {_ENDING, _STUCK} and self.earlier:
                return PublicationInput.COPIES_LACKING
            case TxnIncompleteError() | TxnEndedError() if self.state is not _COPYING:
                return PublicationInput.INCOMPLETE
            case InvalidRequestError() | StorageError(code=StatusCode.RS_DATA_CORRUPTED):
                return PublicationInput.FAULT
            case _:
                return None

    def _places(self, parts: Iterable[Part], range_end: int) -> tuple[Part, ...]:
        return tuple(
            replace(part, range_index=index, txn_id=self._id_in(part, index))
            for part in parts
            for index in range(part.range_index, range_end)
        )

    @staticmethod
    def _id_in(part: Part, range_index: int) -> str:
        is_copy = part.range_index < range_index
        return copy_of(part.txn_id, part.range_index) if is_copy else part.txn_id


def publications_of(txn_number: int, parts: Sequence[Part]) -> list[Publication]:
    """Return a publication for each stream that a decision has parts in."""
    by_stream: dict[int, list[Part]] = {}
    for part in parts:
        by_stream.setdefault(part.stream_id, []).append(part)
    return [Publication.of(txn_number, each) for each in by_stream.values()]
