"""The last commit that the placement driver told this server of, in `driver-commit.json`.

Heartbeats send it back, so that a placement driver notices when its store is older than it was. The
file is not missed much: without it, or after a power cut, this server knows nothing to compare. Its
checksum keeps a damaged one from accusing a store that is right.
"""

from __future__ import annotations

import json
import logging
from hashlib import blake2b
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.log.disk import Disk, describe_os_error, write_file
from sbp_core.regular_files import read_regular

_LOG: Final = logging.getLogger(__name__)

DRIVER_COMMIT_NAME: Final = "driver-commit.json"
_NO_NUMBER: Final = -1


class DriverCommit:
    """The number of a commit and the life of the store it was made in; -1 and none if unknown."""

    def __init__(self, data_dir: Path, disk: Disk) -> None:
        self._path = data_dir / DRIVER_COMMIT_NAME
        self._disk = disk
        self.number, self.life = read_driver_commit(self._path)

    def note(self, number: int, life: str | None) -> None:
        """Remember what the placement driver told; one that tells nothing changes nothing."""
        if not life or (number, life) == (self.number, self.life):
            return
        self.number, self.life = number, life
        known = {"number": number, "life": life}
        content = json.dumps({**known, "checksum": _checksum(number, life)}).encode()
        try:
            write_file(self._disk, self._path, [content], is_durable=False)
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._path, describe_os_error(error))


def read_driver_commit(path: Path) -> tuple[int, str | None]:
    """Return the number and the life in a file; -1 and None if it is missing or unreadable."""
    try:
        content = json.loads(read_regular(path, limits.SMALL_FILE_BYTES_MAX))
        number, life = int(content["number"]), str(content["life"])
        if content["checksum"] != _checksum(number, life):
            raise ValueError("its checksum is wrong")
        return number, life
    except FileNotFoundError:
        return _NO_NUMBER, None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _LOG.warning("%s cannot be read, and is written again: %s", path, error)
        return _NO_NUMBER, None


def _checksum(number: int, life: str) -> str:
    return blake2b(f"{number} {life}".encode(), digest_size=8).hexdigest()
