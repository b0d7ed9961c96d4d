"""The commits of a producer that has an id, for asyncio."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from sbp_core.client import AppendItem, AsyncClient, Transaction, is_producer, txn_id_of
from sbp_core.errors import ConfigurationError, SbpError

_POSITION_BYTES: Final = 8
_HASH_BYTES: Final = 16


class AsyncCommitter:
    """Appends batches of one stream as decided batches of a named producer, each a transaction.

    The placement driver keeps the first decision about each batch number for good. The digest of a
    decision is the number of records that the producer has committed by then, in 8 bytes, and a
    hash of the batches. So a producer that is restarted knows how far it had come, and one that is
    still at work under the same id finds that its number was decided by the other.
    """

    def __init__(self, client: AsyncClient, producer_id: str, stream_id: int) -> None:
        self.producer: Final = f"{producer_id}.{stream_id}"
        if not is_producer(self.producer):
            raise ConfigurationError(
                f"{producer_id!a} cannot be the id of a producer: use some 40 letters, digits, '.',"
                " '_' and '-' at most"
            )
        self.position = 0
        self._client = client
        self._stream_id = stream_id
        self._next_number = 0

    async def begin(self) -> None:
        """Learn what is committed under the id. Raises SbpError."""
        # Only the placement driver is asked: what is staged and not decided does not count.
        known = await self._client.describe_txns(self.producer, spared=None)
        decided = [each for each in known if each.batch_number is not None and each.digest]
        if decided:
            last = max(decided, key=lambda each: each.batch_number or 0)
            self.position = int.from_bytes(last.digest[:_POSITION_BYTES], "big")
            self._next_number = 1 + (last.batch_number or 0)

    async def commit(self, batches: Sequence[bytes], record_count: int) -> None:
        """Append batches, all or none. Raises SbpError; the producer ends then."""
        number = self._next_number
        items = [AppendItem(self._stream_id, batch) for batch in batches]
        position = self.position + record_count
        content = blake2b(b"".join(batches), digest_size=_HASH_BYTES).digest()
        digest = position.to_bytes(_POSITION_BYTES, "big") + content
        transaction = Transaction(txn_id_of(self.producer, number, uuid.uuid4().hex))
        try:
            await self._client.append(items, transaction=transaction)
        except BaseException:
            with suppress(SbpError):
                await self._client.abort_txns(transaction.parts())
            raise
        decision = await self._client.commit_txn(
            self.producer, number, transaction.parts(), record_count=record_count, digest=digest
        )
        if decision.digest != digest:
            raise ConfigurationError(
                f"another producer has committed batch {number} of {self.producer}: it has the same"
                " id. Let one run at a time; start this one again to go on where the other is"
            )
        self.position, self._next_number = position, number + 1
