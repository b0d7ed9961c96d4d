"""The last commit of the metadata store, noted outside of it in `metadata.mark`.

SQLite ends its write-ahead log at the first frame whose checksum is wrong: damage there takes all
later commits away without a word. The mark tells how far they went. It is written after each
commit, without a sync, so it is never ahead of what is durable, and may be behind.

Two slots are written by turns. Each (big-endian):

    bytes   field      type  meaning
    0-7     magic            "SBPMARK1"
    8-15    sequence   u64   grows with each write: the higher one counts
    16-23   number     i64   of the commit
    24-55   life             its life, ASCII, padded with zero bytes; none: no commit is known
    56-71   content          checksum of the store's content after the commit; zero: not known
    72-87   checksum         BLAKE2b of the 72 bytes before
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.log.disk import DiskFile, OsDisk, describe_os_error, write_file
from sbp_core.pd.metadata.history import NO_COMMIT, CommitId

MARK_NAME: Final = "metadata.mark"

_MAGIC: Final = b"SBPMARK1"
_FIELDS: Final = struct.Struct(f">8sQq{limits.STORE_LIFE_LENGTH_MAX}s16s")
_CHECKSUM_BYTES: Final = 16
_SLOT_BYTES: Final = _FIELDS.size + _CHECKSUM_BYTES
_SLOT_PLACES: Final = (0, 512)
"""In different sectors, so that no failed write takes both."""

UNKNOWN_CONTENT: Final = bytes(16)
"""In place of a checksum of the content."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a slot says."""

    sequence: int
    commit: CommitId
    content: bytes = UNKNOWN_CONTENT


class CommitMark:
    """The file with the mark of one store. Opened by `maybe_open` or `create`."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        slots = [_maybe_decode(file.pread(_SLOT_BYTES, place)) for place in _SLOT_PLACES]
        known = [slot for slot in slots if slot is not None]
        self._damaged_slot_count: Final = len(slots) - len(known)
        self.maybe_last = max(known, key=lambda mark: mark.sequence, default=None)
        """The newest that can be read; None if neither can."""

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def maybe_fault(self) -> str | None:
        """What follows from damage to one of the two slots; None if both are whole, or neither."""
        if self._damaged_slot_count != 1:
            return None
        return (
            f"{MARK_NAME} is damaged in one of its two slots. The other one counts, so at most the"
            " last commit could be missing unnoticed. The next start writes the damaged slot again"
        )

    @classmethod
    def maybe_open(cls, directory: Path) -> CommitMark | None:
        """Open the mark of a store; None where there is none. Raises ConfigurationError."""
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
        slots = [_encode(Mark(sequence, NO_COMMIT)) for sequence in range(len(_SLOT_PLACES))]
        first, second = _SLOT_PLACES
        try:
            write_file(OsDisk(), path, [slots[0].ljust(second - first, b"\0"), slots[1]])
            return cls(OsDisk().open(path, is_writable=True))
        except OSError as error:
            raise ConfigurationError(
                f"data_dir: {path} cannot be written: {describe_os_error(error)};"
                " free some space, or choose a directory that this user can write"
            ) from error

    def write(self, commit: CommitId, content: bytes) -> None:
        """Note the last commit in the slot that is not the newest. Raises OSError."""
        sequence = 1 if self.maybe_last is None else self.maybe_last.sequence + 1
        mark = Mark(sequence, commit, content)
        self._file.pwritev([_encode(mark)], _SLOT_PLACES[sequence % len(_SLOT_PLACES)])
        self.maybe_last = mark

    def sync(self) -> None:
        """Make what was noted durable. Raises OSError."""
        self._file.fsync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encode(mark: Mark) -> bytes:
    life = mark.commit.life_id.encode("ascii")
    fields = _FIELDS.pack(_MAGIC, mark.sequence, mark.commit.number, life, mark.content)
    return fields + blake2b(fields, digest_size=_CHECKSUM_BYTES).digest()


def _maybe_decode(slot: bytes) -> Mark | None:
    fields, checksum = slot[: _FIELDS.size], slot[_FIELDS.size :]
    if len(slot) < _SLOT_BYTES or blake2b(fields, digest_size=_CHECKSUM_BYTES).digest() != checksum:
        return None
    magic, sequence, number, life, content = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        return None
    return Mark(sequence, CommitId(number, life.rstrip(b"\0").decode("ascii")), content)
