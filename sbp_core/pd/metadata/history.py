"""The commits that a metadata store has had, and so whether it is older than it was.

Each time a store is opened to be changed it begins a *life* with a random id. A commit number and
the id of the life it was made in name one commit for ever: a store that was put back to an earlier
copy counts on from there in another life. A store that a person accepted, though commits are
missing, begins a new *epoch* with a higher number. The commits of lower epochs are never asked for
again.

Ids of streams and range servers, and revisions, count on from the last one. A store that lacks its
latest commits does not know how far they went, so a new epoch's numbers continue in a block of
their own, a random distance above all that the store knows:

    what            block (upper bits)   within a block (lower bits)
    stream ids      the epoch            40
    revisions       the epoch            40
    range servers   15 of 31             16

The first epoch is 0, so the ids of a cluster that was never put back are 1, 2, 3. Numbers of
decisions need no epoch: they never leave the placement driver.

The last commit is noted outside of the store too, in `metadata.mark`. SQLite ends its write-ahead
log at the first frame whose checksum is wrong: damage there takes all later commits away without a
word. The mark names the last commit. It is written after each commit, without a sync, so it is
never ahead of the durable commits, and may be behind.

Two slots are written by turns. Each (big-endian):

    bytes   field      type  meaning
    0-7     magic            "SBPMARK1"
    8-15    sequence   u64   grows with each write: the higher one counts
    16-23   number     i64   of the commit
    24-55   life             its life, ASCII, padded with zero bytes; none: no commit is known
    56-71                    zero; a checksum before version 16 of the metadata
    72-87   checksum         BLAKE2b of the 72 bytes before
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Text, bindparam, delete, insert, select, update

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.log.disk import DiskFile, OsDisk, describe_os_error, write_file
from sbp_core.pd.metadata.tables import cluster, last_commit, lives

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
    """The time between two openings of a store: the commits from `first_commit` on."""

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


EPOCH_SHIFT: Final = 40
_EPOCH_STEP_MAX: Final = 1 << 14
_SERVER_SHIFT: Final = 16
_SERVER_STEP_MAX: Final = 1 << 8
SERVER_ID_MAX: Final = 2**31 - 1
"""Ids of range servers are int32 on the wire."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The last ids that count as assigned when an epoch begins."""

    epoch: int
    last_stream_id: int
    """The revision, too."""
    last_server_id: int


def epoch_of_stream_id(last_stream_id: int) -> int:
    """Return the number of the epoch of the last stream id of a store, 0 for the first one."""
    return last_stream_id >> EPOCH_SHIFT


def last_id_of_epoch(stream_id: int) -> int:
    """Return the highest stream id in the block of an epoch."""
    return ((epoch_of_stream_id(stream_id) + 1) << EPOCH_SHIFT) - 1


def next_epoch(last_stream_id: int, last_server_id: int, above: int) -> EpochStart:
    """Return a new epoch above that of a store, which has these last ids, and above a known one."""
    known = max(above, epoch_of_stream_id(last_stream_id))
    epoch = known + 1 + secrets.randbelow(_EPOCH_STEP_MAX)
    block = (last_server_id >> _SERVER_SHIFT) + 1 + secrets.randbelow(_SERVER_STEP_MAX)
    return EpochStart(epoch, epoch << EPOCH_SHIFT, min(block << _SERVER_SHIFT, SERVER_ID_MAX))


MARK_NAME: Final = "metadata.mark"

_MAGIC: Final = b"SBPMARK1"
_FIELDS: Final = struct.Struct(f">8sQq{limits.STORE_LIFE_LENGTH_MAX}s16x")
_CHECKSUM_BYTES: Final = 16
_SLOT_BYTES: Final = _FIELDS.size + _CHECKSUM_BYTES
_SLOT_OFFSETS: Final = (0, 512)
"""In different sectors, so that no failed write takes both."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the mark: the slot with the highest sequence has the last commit."""

    sequence: int
    commit: CommitId


class CommitMark:
    """The file with the mark of one store. Opened by `maybe_open` or `create`."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        slots = [_maybe_decode(file.pread(_SLOT_BYTES, offset)) for offset in _SLOT_OFFSETS]
        known = [slot for slot in slots if slot is not None]
        self._damaged_slot_count: Final = len(slots) - len(known)
        self.last = max(known, key=lambda slot: slot.sequence, default=None)
        """The newest slot that can be read, None if neither can be."""

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def maybe_fault(self) -> str | None:
        """The consequence of damage to one of the two slots; None if both are whole, or neither."""
        if self._damaged_slot_count != 1:
            return None
        return (
            f"{MARK_NAME} is damaged in one of its two slots. The other one counts, so at most the"
            " last commit could be missing unnoticed. The next start writes the damaged slot again"
        )

    @classmethod
    def maybe_open(cls, directory: Path) -> CommitMark | None:
        """Open the mark of a store, None if it has no mark. Raises ConfigurationError."""
        path = directory / MARK_NAME
        try:
            return cls(OsDisk().open(path, is_writable=True))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(
                f"data_dir: {path} cannot be used: {describe_os_error(error)};"
                " make it a file that this user can write"
            ) from error

    @classmethod
    def create(cls, directory: Path) -> CommitMark:
        """Make a mark that knows no commit yet, durably, in place of any other.

        Raises ConfigurationError.
        """
        path = directory / MARK_NAME
        # In the order of `write`, so that the first write replaces a slot that is damaged.
        slots = [_encode(Slot(sequence, NO_COMMIT)) for sequence in range(len(_SLOT_OFFSETS))]
        first, second = _SLOT_OFFSETS
        try:
            write_file(OsDisk(), path, [slots[0].ljust(second - first, b"\0"), slots[1]])
            return cls(OsDisk().open(path, is_writable=True))
        except OSError as error:
            raise ConfigurationError(
                f"data_dir: {path} cannot be written: {describe_os_error(error)};"
                " free some space, or choose a directory that this user can write"
            ) from error

    def write(self, commit: CommitId) -> None:
        """Note the last commit in the slot that is not the newest. Raises OSError."""
        sequence = 1 if self.last is None else self.last.sequence + 1
        slot = Slot(sequence, commit)
        self._file.pwritev([_encode(slot)], _SLOT_OFFSETS[sequence % len(_SLOT_OFFSETS)])
        self.last = slot

    def sync(self) -> None:
        """Make the mark durable. Raises OSError."""
        self._file.fsync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encode(slot: Slot) -> bytes:
    life = slot.commit.life_id.encode("ascii")
    fields = _FIELDS.pack(_MAGIC, slot.sequence, slot.commit.number, life)
    return fields + blake2b(fields, digest_size=_CHECKSUM_BYTES).digest()


def _maybe_decode(data: bytes) -> Slot | None:
    fields, checksum = data[: _FIELDS.size], data[_FIELDS.size :]
    if len(data) < _SLOT_BYTES or blake2b(fields, digest_size=_CHECKSUM_BYTES).digest() != checksum:
        return None
    magic, sequence, number, life = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        return None
    return Slot(sequence, CommitId(number, life.rstrip(b"\0").decode("ascii")))


LAST_NUMBER: Final = select(last_commit.c.number)
NEXT_NUMBER: Final = (
    update(last_commit)
    .values(number=last_commit.c.number + 1, content=bindparam("content", type_=Text()))
    .returning(last_commit.c.number)
)
LIVES: Final = select(lives.c.life_id, lives.c.first_commit).order_by(lives.c.life_number)
ADD_LIFE: Final = insert(lives)
LAST_STREAM_ID: Final = select(cluster.c.last_stream_id)


def history_of(connection: Connection) -> History:
    """Return the commits that a store has had."""
    rows = connection.execute(LIVES)
    return History([Life(*row) for row in rows], connection.execute(LAST_NUMBER).scalar_one())


def begin_epoch(connection: Connection, last_number: int, above: int) -> CommitId:
    """Begin a new epoch, above a known one, within a transaction; return its first commit."""
    stream_id, server_id = connection.execute(
        select(cluster.c.last_stream_id, cluster.c.last_server_id)
    ).one()
    start = next_epoch(stream_id, server_id, above)
    connection.execute(
        update(cluster).values(
            last_stream_id=start.last_stream_id,
            revision=start.last_stream_id,
            last_server_id=start.last_server_id,
        )
    )
    commit = CommitId(last_number + 1, new_life_id(start.epoch))
    connection.execute(delete(last_commit))
    connection.execute(insert(last_commit).values(number=commit.number))
    connection.execute(ADD_LIFE, {"life_id": commit.life_id, "first_commit": commit.number})
    return commit
