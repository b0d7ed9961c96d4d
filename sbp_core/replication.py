"""The rules by which the replicas of a range agree, as values and functions without I/O.

A range is a log with one primary for life. The primary numbers the entries 1, 2, 3 ... (`seq`)
and sends them to the secondaries. An entry is committed once `ack_count` replicas have it on disk.
Only then is it acknowledged to the writer, and only committed entries are readable.

There is no election. If the primary is lost, or restarts, the range ends and the next one begins:

1. Fence. Each replica notes durably that it accepts nothing more for this range, and answers with
   the longest prefix that it can read and verify. The fence waits for the entries before it: an
   entry that became durable behind its own fence could be committed without being in any answer.
2. Decide. With `answers_needed` answers no entry can be committed any more: too few replicas are
   left that are not fenced. For the same reason one of the answers contains every committed entry.
   The end of the range is the longest prefix. The placement driver stores it; the first stands.
3. Settle. A replica that is shorter copies what it lacks, one that is longer cuts what was never
   committed. Both compare the digest at the decided end. Then the replica serves the whole range.
   An entry that waited to be committed is acknowledged once `ack_count` replicas have it or have
   settled: the decided end may be on one disk alone.

Why a prefix is enough: a replica accepts an entry only behind the entry before it, by number and
digest. So of two replicas that were not damaged one is a prefix of the other.

`tests/property/test_replication_model.py` explores every interleaving of a small cluster that
follows these rules, and shows for each rule that leaving it out breaks a promise.
"""

import enum
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `seq` entries of a range; equal digests mean equal entries."""

    seq: int = 0
    digest: bytes = b""

    def extended(self, entry: bytes) -> "Prefix":
        """Return the prefix with one more entry: each digest covers the digest before it."""
        digest = hashlib.blake2b(entry, digest_size=DIGEST_BYTES, key=self.digest).digest()
        return Prefix(self.seq + 1, digest)


class Stage(enum.Enum):
    """How far a replica is in the life of its range; a stage never goes back."""

    OPEN = "open"
    FENCED = "fenced"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """The answer of a fenced replica: the prefix that it verified, and whether it ever had more."""

    prefix: Prefix
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Replica:
    """The durable state of one server's replica of a range.

    `end` is the longest prefix that is durable and verified. `highest_seq` is the highest number
    that ever was durable here; it is above `end` after damage. `committed_seq` is what the replica
    knows to be committed, which may be less than what is.
    """

    stage: Stage = Stage.OPEN
    end: Prefix = Prefix()
    highest_seq: int = 0
    committed_seq: int = 0

    @property
    def readable_seq(self) -> int:
        """The last entry that a reader may get from this replica."""
        return (
            self.end.seq if self.stage is Stage.SETTLED else min(self.committed_seq, self.end.seq)
        )

    @property
    def is_whole(self) -> bool:
        """Whether all is here that ever was. A damaged replica neither accepts nor decides."""
        return self.end.seq == self.highest_seq

    def accepts(self, before: Prefix) -> bool:
        """Whether an entry may be appended whose predecessors are `before`."""
        return self.stage is Stage.OPEN and self.is_whole and self.end == before

    def appended(self, end: Prefix) -> "Replica":
        """Return the replica after the entries up to `end` became durable."""
        return replace(self, end=end, highest_seq=end.seq)

    def knowing(self, committed_seq: int) -> "Replica":
        """Return the replica after a message about committed entries. Such messages may be late."""
        return replace(self, committed_seq=max(self.committed_seq, committed_seq))

    def damaged(self, readable: Prefix) -> "Replica":
        """Return the replica after only `readable` could be verified."""
        return replace(self, end=readable)

    def fenced(self) -> "Replica":
        """Return the replica after it was fenced, for good: also after a restart."""
        return replace(self, stage=Stage.FENCED) if self.stage is Stage.OPEN else self

    def fence_answer(self) -> FenceAnswer:
        """Return the report of a fenced replica to the placement driver."""
        return FenceAnswer(self.end, self.is_whole)

    def settled(self, decided: Prefix) -> "Replica":
        """Return the replica once its entries are those of the decided prefix, by its digest."""
        return Replica(Stage.SETTLED, decided, decided.seq, decided.seq)


def committed_seq(durable: Collection[int], ack_count: int) -> int:
    """Return the highest number that `ack_count` replicas have on disk; 0 if there is none.

    `durable` has the highest contiguous number of each member of the range, the primary included.
    """
    return sorted(durable, reverse=True)[ack_count - 1] if len(durable) >= ack_count else 0


def answers_needed(member_count: int, ack_count: int) -> int:
    """Return how many members must be fenced so that the others are too few to commit anything."""
    return member_count - ack_count + 1


def decided_end(answers: Iterable[FenceAnswer], member_count: int, ack_count: int) -> Prefix | None:
    """Return where a range ends by the answers of distinct members; None while they are too few.

    An answer of a replica that once had more does not count: what it lost may be committed.
    """
    whole = [answer.prefix for answer in answers if answer.is_whole]
    if len(whole) < answers_needed(member_count, ack_count):
        return None
    return max(whole, key=lambda prefix: prefix.seq)
