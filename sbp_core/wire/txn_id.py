"""Ids of producers, of transactions, and of writers (SPEC "APPEND", extension).

The id of a transaction names the producer and its batch: `PRODUCER.BATCH.UNIQUE`, for example
`orders.17.6f1c`. So once a batch of a producer is decided, everything else that is staged for that
batch is known to be never committed. If a range is sealed while it has staged batches, they are
staged again in another range: their id is that of the original, `~`, and its range index.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from sbp_core import limits

ONE_SHOT_PREFIX: Final = "once-"
"""Begins the ids of producers that have one batch and no name of their own. The prefix is stored in
the metadata of placement drivers.
"""

_PRODUCER: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.PRODUCER_LENGTH_MAX}}}")
_TXN_ID: Final = re.compile(rf"[A-Za-z0-9._~-]{{1,{limits.TXN_ID_LENGTH_MAX}}}")
_WRITER_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.WRITER_ID_LENGTH_MAX}}}")
_OF_A_BATCH: Final = re.compile(r"(.+)\.(0|[1-9][0-9]{0,18})\.[A-Za-z0-9_-]+")
_COPY_MARK: Final = "~"


def is_producer(text: str) -> bool:
    """Whether a text can name a producer of transactions (`Client.commit_txn`).

    That is 1 to PRODUCER_LENGTH_MAX letters, digits, `.`, `_` and `-`.
    """
    return _PRODUCER.fullmatch(text) is not None


def one_shot_producer() -> str:
    """Return the id of a new producer for one batch, whose commit is not repeated later.

    It is forgotten ONE_SHOT_KEPT_MS after the decision, once that is published.
    """
    return f"{ONE_SHOT_PREFIX}{uuid.uuid4().hex}"


def is_txn_id(text: str) -> bool:
    """Whether a text is a valid id of a transaction."""
    return _TXN_ID.fullmatch(text) is not None


def is_writer_id(text: str) -> bool:
    """Whether a text is a valid id of a writer (SPEC "Writers")."""
    return _WRITER_ID.fullmatch(text) is not None


def txn_id_of(producer: str, batch_number: int, unique: str) -> str:
    """Return the id of a transaction of a producer's batch; `unique` differs for each try.

    For example `txn_id_of("orders", 17, "6f1c")` is `orders.17.6f1c`.
    """
    return f"{producer}.{batch_number}.{unique}"


def copy_of(txn_id: str, range_index: int) -> str:
    """Return the id under which batches of a sealed range are staged again."""
    return f"{txn_id}{_COPY_MARK}{range_index}"


def is_copy(txn_id: str) -> bool:
    """Whether an id is that of a copy, which only the placement driver stages."""
    return _COPY_MARK in txn_id


def original_of(txn_id: str) -> str:
    """Return the id of the original if this is the id of a copy, else the id itself."""
    return txn_id.partition(_COPY_MARK)[0]


def maybe_batch_of(txn_id: str) -> tuple[str, int] | None:
    """Return the producer and the batch number in an id, None if there are none."""
    match = _OF_A_BATCH.fullmatch(original_of(txn_id))
    return (match[1], int(match[2])) if match and is_producer(match[1]) else None


def owned_name(txn_id: str) -> str:
    """Return the name that has an owner: the producer in an id, or the id if it names none."""
    batch = maybe_batch_of(txn_id)
    return original_of(txn_id) if batch is None else batch[0]
