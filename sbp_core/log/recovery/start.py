"""Where the log starts: the file `start`, absent while that is position 0.

Octets: "SBPSTART", the position (u64), CRC-32C of both, big-endian. It is written before segments
are removed from the front, so files before it are leftovers of that, and a gap at or after it is
damage.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from sbp_core.errors import LogCorruptionError, LogError, LogWriteError
from sbp_core.failpoints import failpoint
from sbp_core.log.damage import corruption
from sbp_core.log.disk import Disk, translate_os_error, write_file
from sbp_core.wire.checksum import crc32c

START_NAME: Final = "start"

_MAGIC: Final = b"SBPSTART"
_FIELDS: Final = struct.Struct(">8sQ")
_CRC: Final = struct.Struct(">I")


def read_start(disk: Disk, directory: Path) -> int:
    """Return the position where the log in `directory` starts.

    Raises LogCorruptionError if that cannot be told, LogError if the file cannot be read.
    """
    path = directory / START_NAME
    with translate_os_error(LogError, "reading", path):
        try:
            file = disk.open(path, is_writable=False)
        except FileNotFoundError:
            return 0
        data = file.pread(file.size(), 0)
        file.close()
    try:
        return _decode(data)
    except LogCorruptionError as error:
        raise corruption(path, 0, str(error)) from error


def write_start(disk: Disk, directory: Path, position: int) -> None:
    """Let the log start at `position`, durably. Raises LogWriteError."""
    path = directory / START_NAME
    fields = _FIELDS.pack(_MAGIC, position)
    with translate_os_error(LogWriteError, "writing", path):
        failpoint("start.before_write")
        write_file(disk, path, [fields, _CRC.pack(crc32c((fields,)))])
        failpoint("start.after_write")


def _decode(data: bytes) -> int:
    if len(data) != _FIELDS.size + _CRC.size:
        raise LogCorruptionError(f"it has {len(data)} octets, not {_FIELDS.size + _CRC.size}")
    magic, position = _FIELDS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if magic != _MAGIC or crc != crc32c((data[: _FIELDS.size],)):
        raise LogCorruptionError("its checksum is wrong")
    return int(position)
