r"""The start of the log, and how far it was synced: small files beside the segments.

`start` holds the first position; the file is absent while that is 0. The file has "SBPSTART", the
position (u64), and CRC-32C of both, big-endian, and is written before segments are removed from the
front. So segments before `start` are leftovers of a removal, and a gap at or after `start` is
damage.

`high-water.0` and `high-water.1` hold the high-water mark: how far the log was synced. Each group
proves that the entries before it were synced, but nothing in the log proves the sync of its last
entries: a file that lost its end looks like a file that was never longer. So the mark is written at
intervals while the log is open, and when it is closed. A log that ends before its mark has lost
acknowledged records.

The two files are written in turn, in place, so a crash leaves one of them whole; the file with the
higher sequence counts. Both files are synced when the log is closed. In between a power cut may
leave an older mark, never a mark above the end of the log, because the log is synced first.

Header (big-endian), then the tails as columns (see state_snapshot.py):

    bytes   field       type  meaning
    0-7     magic             "SBPHIGH\n"
    8-11    version     u32   1
    12-19   sequence    u64   counts the writes to both files
    20-35   log_id            identifies the log, zeros while it has no id
    36-43   position    u64   the log was synced up to here
    44-51   tails_from  u64   the tails are those of the ranges that changed from here on
    52-55   tail_count  u32   2^32 - 1: they are not known
    56-59   tails_crc   u32   CRC-32C of the tails
    60-63   crc         u32   CRC-32C of the 60 bytes before
"""

from __future__ import annotations

import logging
import struct
import threading
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.log.disk import Disk, translate_os_error, write_file
from sbp_core.log.segment import naming_damage
from sbp_core.log.states.range_states import LoggedRange, RangeKey
from sbp_core.log.states.state_snapshot import decode_states, encode_states, states_lengths
from sbp_core.segment_format import CHECKSUM_BYTES, is_intact, with_checksum
from sbp_core.wire.checksum import crc32c

START_NAME: Final = "start"

_START_MAGIC: Final = b"SBPSTART"
_START_FIELDS: Final = struct.Struct(">8sQ")
_MAGIC: Final = b"SBPHIGH\n"
_VERSION: Final = 1
_FIELDS: Final = struct.Struct(">8sIQ16sQQII")
_HEADER_BYTES: Final = _FIELDS.size + CHECKSUM_BYTES
_NO_TAILS: Final = 2**32 - 1
_SLOTS: Final = 2
_NOTHING: Final[Mapping[RangeKey, LoggedRange]] = {}

_LOG: Final = logging.getLogger(__name__)


def read_start(disk: Disk, directory: Path) -> int:
    """Return the position where the log starts. Raises LogError, LogCorruptionError if damaged."""
    path = directory / START_NAME
    data = _maybe_read(disk, path)
    if data is None:
        return 0
    length = _START_FIELDS.size + CHECKSUM_BYTES
    with naming_damage(path, 0):
        if len(data) != length:
            raise LogCorruptionError(f"it has {len(data)} bytes, not {length}")
        magic, position = _START_FIELDS.unpack_from(data)
        if magic != _START_MAGIC or not is_intact(data, _START_FIELDS.size):
            raise LogCorruptionError("its checksum is wrong")
    return int(position)


def write_start(disk: Disk, directory: Path, position: int) -> None:
    """Write the start of the log, durably. Raises LogWriteError."""
    path = directory / START_NAME
    fields = _START_FIELDS.pack(_START_MAGIC, position)
    with translate_os_error(LogWriteError, "writing", path):
        failpoint("start.before_write")
        write_file(disk, path, [with_checksum(fields)])
        failpoint("start.after_write")


def _maybe_read(disk: Disk, path: Path) -> bytes | None:
    """Return the content of a file, None if it is missing. Raises LogError."""
    with translate_os_error(LogError, "reading", path):
        try:
            file = disk.open(path, is_writable=False)
        except FileNotFoundError:
            return None
        with closing(file):
            return file.pread(file.size(), 0)


@dataclass(frozen=True, slots=True)
class HighWater:
    """The high-water mark of a log: it was synced up to `position`. `log_id` may be empty.

    `tails` are the states at `position` of the ranges that changed since `tails_from`; None if
    unknown.
    """

    position: int
    tails_from: int = 0
    tails: tuple[LoggedRange, ...] | None = None
    log_id: str = ""


def slot_path(directory: Path, sequence: int) -> Path:
    """Return the file for the write with this sequence."""
    return directory / f"high-water.{sequence % _SLOTS}"


def read_high_water(disk: Disk, directory: Path) -> tuple[HighWater | None, int]:
    """Return the latest mark, None if there is none, and the sequence of the next write.

    A damaged file is logged and skipped, because the log can be read without it. Raises LogError
    when the disk fails.
    """
    newest: HighWater | None = None
    next_sequence = 0
    for slot in range(_SLOTS):
        path = slot_path(directory, slot)
        data = _maybe_read(disk, path)
        if data is None:
            continue
        try:
            sequence, found = _decode_mark(data)
        except LogCorruptionError as error:
            _LOG.warning("note damaged path=%s: %s; it is written again", path, error)
            continue
        if sequence >= next_sequence:
            newest, next_sequence = found, sequence + 1
    return newest, next_sequence


class HighWaterKeeper:
    """Tracks how far an open log is synced, and writes its high-water mark.

    The log calls `on_...` in its order, one at a time; any thread may call the rest. `position` is
    the end of the last synced group.
    """

    def __init__(
        self, disk: Disk, directory: Path, mark: HighWater | None, next_sequence: int
    ) -> None:
        self.log_id = "" if mark is None else mark.log_id
        self.position = 0
        self._disk = disk
        self._directory = directory
        self._next_sequence = next_sequence
        self._base = 0
        self._tails: dict[RangeKey, LoggedRange] = {}
        self._unsynced: dict[RangeKey, LoggedRange] = {}
        self._unsynced_end = 0
        self._noted_position = -1
        self._changing = threading.Lock()
        self._noting = threading.Lock()

    def on_segment(
        self, base: int, end: int, changed: Mapping[RangeKey, LoggedRange] = _NOTHING
    ) -> None:
        """The segment at `base`, synced up to `end`, is active; it has `changed` these ranges."""
        with self._changing:
            self._base, self.position = base, end
            self._tails, self._unsynced, self._unsynced_end = dict(changed), {}, end

    def on_written(self, changed: Mapping[RangeKey, LoggedRange], end: int) -> None:
        """A group that changed these ranges was written, up to log position `end`."""
        self._unsynced |= changed
        self._unsynced_end = end

    def on_synced(self) -> None:
        """All groups that were written are synced."""
        with self._changing:
            self._tails |= self._unsynced
            self.position = self._unsynced_end
        self._unsynced = {}

    @property
    def is_due(self) -> bool:
        """Whether the mark is behind `position`."""
        return self._noted_position < self.position

    def ensure_id(self) -> None:
        """Give the log an id, durably, if it has none. Raises LogWriteError."""
        if not self.log_id:
            self.log_id = uuid.uuid4().hex
            self._write(self._mark(), is_durable=True)

    def promise(self, position: int) -> None:
        """Write a mark behind the end of the log, durably. Raises LogWriteError.

        The log is then not opened again before the loss is repaired.
        """
        self._write(HighWater(position, log_id=self.log_id), is_durable=True)

    def note(self, *, is_durable: bool = False) -> None:
        """Write the mark if it changed; sync it if `is_durable`. Raises LogWriteError."""
        if self.is_due:
            self._write(self._mark(), is_durable=is_durable)

    def _mark(self) -> HighWater:
        with self._changing:
            return HighWater(self.position, self._base, tuple(self._tails.values()), self.log_id)

    def _write(self, mark: HighWater, *, is_durable: bool) -> None:
        with self._noting, translate_os_error(LogWriteError, "writing", self._directory):
            path = slot_path(self._directory, self._next_sequence)
            try:
                file = self._disk.open(path, is_writable=True)
            except FileNotFoundError:
                file = self._disk.create(path)
            with closing(file):
                file.pwritev([_encode_mark(mark, self._next_sequence)], 0)
                if is_durable:
                    file.fsync()
            if is_durable:
                self._disk.fsync_dir(self._directory)
            self._next_sequence += 1
            self._noted_position = mark.position


def _encode_mark(mark: HighWater, sequence: int) -> bytes:
    tails = b"" if mark.tails is None else encode_states(mark.tails)
    count = _NO_TAILS if mark.tails is None else len(mark.tails)
    log_id = bytes.fromhex(mark.log_id).ljust(16, b"\0")
    where = (mark.position, mark.tails_from)
    fields = _FIELDS.pack(_MAGIC, _VERSION, sequence, log_id, *where, count, crc32c((tails,)))
    return with_checksum(fields) + tails


def _decode_mark(data: bytes) -> tuple[int, HighWater]:
    """Return the sequence of a write and its mark. Raises LogCorruptionError.

    If only the tails are damaged they are unknown. The header fits one sector and is written whole.
    """
    if len(data) < _HEADER_BYTES:
        raise LogCorruptionError(f"it has {len(data)} bytes, expected at least {_HEADER_BYTES}")
    magic, version, sequence, log_id, position, tails_from, count, tails_crc = _FIELDS.unpack_from(
        data
    )
    if (magic, version) != (_MAGIC, _VERSION) or not is_intact(data, _FIELDS.size):
        raise LogCorruptionError("its checksum is wrong")
    tails = None
    if count != _NO_TAILS:
        tails = _maybe_tails(data[_HEADER_BYTES:], count, tails_crc)
    return sequence, HighWater(position, tails_from, tails, log_id.hex() if any(log_id) else "")


def _maybe_tails(data: bytes, count: int, crc: int) -> tuple[LoggedRange, ...] | None:
    for length in states_lengths(count):  # a longer mark may have left bytes behind this one
        tails = memoryview(data)[:length]
        if len(tails) == length and crc32c((tails,)) == crc:
            return tuple(decode_states(tails, count))
    return None
