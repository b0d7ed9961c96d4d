"""Ids of producers, of transactions, and of writers (SPEC "APPEND", extension).

A transaction's id tells whose batch it belongs to: `PRODUCER.BATCH.UNIQUE`, for example
`orders.17.6f1c`. So who knows which batches of a producer are decided knows as well that whatever
else is staged for them will never be committed. What is staged again in another range, because its
own was sealed meanwhile, has the id of the original, `~`, and the range index of the original.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from sbp_core import limits

ONE_SHOT_PREFIX: Final = "once-"
"""Of the ids of producers that have one batch and no name of their own; the placement driver's
store knows it, too.
"""

_PRODUCER: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.PRODUCER_LENGTH_MAX}}}")
_TXN_ID: Final = re.compile(rf"[A-Za-z0-9._~-]{{1,{limits.TXN_ID_LENGTH_MAX}}}")
_WRITER_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.WRITER_ID_LENGTH_MAX}}}")
_OF_A_BATCH: Final = re.compile(r"(.+)\.(0|[1-9][0-9]{0,18})\.[A-Za-z0-9_-]+")
_COPY_MARK: Final = "~"


def is_producer(text: str) -> bool:
    """Whether a producer may be called so."""
    return _PRODUCER.fullmatch(text) is not None


def one_shot_producer() -> str:
    """Return the id of a new producer, for one batch that is never committed again later.

    It is forgotten ONE_SHOT_KEPT_MS after the decision, once that is published.
    """
    return f"{ONE_SHOT_PREFIX}{uuid.uuid4().hex}"


def is_txn_id(text: str) -> bool:
    """Whether a transaction may be called so."""
    return _TXN_ID.fullmatch(text) is not None


def is_writer_id(text: str) -> bool:
    """Whether a writer, who numbers its batches, may be called so."""
    return _WRITER_ID.fullmatch(text) is not None


def txn_id_of(producer: str, batch_number: int, unique: str) -> str:
    """Return the id of a transaction of a producer's batch."""
    return f"{producer}.{batch_number}.{unique}"


def copy_of(txn_id: str, range_index: int) -> str:
    """Return the id under which what is staged in a sealed range is staged again."""
    return f"{txn_id}{_COPY_MARK}{range_index}"


def is_copy(txn_id: str) -> bool:
    """Whether an id is that of a copy, which only the placement driver stages."""
    return _COPY_MARK in txn_id


def original_of(txn_id: str) -> str:
    """Return the id of which one may be that of a copy, or the id itself."""
    return txn_id.partition(_COPY_MARK)[0]


def maybe_batch_of(txn_id: str) -> tuple[str, int] | None:
    """Return the producer and the batch number that an id tells, None if it tells none."""
    match = _OF_A_BATCH.fullmatch(original_of(txn_id))
    return (match[1], int(match[2])) if match and is_producer(match[1]) else None
