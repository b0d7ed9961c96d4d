"""The small files of a range server beside its log.

`identity.json` has the server's id, its cluster and the secret that proves the id, readable by the
owner only. The file is written atomically: once, and again if an earlier version wrote no secret.

`driver-commit.json` has the last commit that the placement driver reported to this server.
Heartbeats send it back, so that a placement driver notices an older copy of its store. The checksum
keeps a damaged file from accusing an intact store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError, LogError
from sbp_core.log.disk import Disk, write_file
from sbp_core.log.recovery.opening import has_segments
from sbp_core.rangeserver.notes import cause_of, maybe_note, write_note
from sbp_core.regular_files import read_regular

IDENTITY_NAME: Final = "identity.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of a range server in a cluster; an earlier version wrote no secret."""

    server_id: int
    cluster_id: str
    server_secret: str = field(default="", repr=False)


def load_identity(data_dir: Path) -> Identity | None:
    """Return the stored identity, None in a new folder. Raises ConfigurationError if unreadable."""
    path = data_dir / IDENTITY_NAME
    try:
        content = json.loads(read_regular(path, limits.SMALL_FILE_BYTES_MAX))
        return Identity(
            int(content["server_id"]),
            str(content["cluster_id"]),
            str(content.get("server_secret", "")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({cause_of(error)}). {remedy_without_identity(data_dir)}"
        ) from error


def store_identity(data_dir: Path, identity: Identity, disk: Disk) -> None:
    """Write the identity durably. Raises ConfigurationError when the folder is not writable."""
    path = data_dir / IDENTITY_NAME
    try:
        write_file(disk, path, [json.dumps(asdict(identity)).encode()])
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error


def check_log_is_there(data_dir: Path, disk: Disk) -> Identity | None:
    """Return the stored identity, None in a new folder. Raises LogError if its log is missing."""
    identity, directory = load_identity(data_dir), data_dir / "log"
    if identity is not None and not has_segments(disk, directory):
        raise LogError(
            f"the log of range server {identity.server_id} is missing: {directory} holds no"
            " segment. Nothing was changed. Put the folder back as it was. Without a copy, its"
            f" records are lost: remove {data_dir / IDENTITY_NAME} to start as a new server, and"
            " delete and create again the streams that had ranges in it"
        )
    return identity


def remedy_without_identity(data_dir: Path) -> str:
    """Return the remedy for a folder without an identity."""
    return (
        f"{IDENTITY_NAME} names the server that owns this folder: put it back from a copy. Without"
        f" one, what is in the log cannot be served any more: move {data_dir} away to start as a"
        " new server, and delete and create again the streams that had ranges in it"
    )


DRIVER_COMMIT_NAME: Final = "driver-commit.json"
_NO_NUMBER: Final = -1


class DriverCommit:
    """The number of a commit, and the incarnation (`life`) of its store; -1 and None if unknown."""

    def __init__(self, data_dir: Path, disk: Disk) -> None:
        self._path = data_dir / DRIVER_COMMIT_NAME
        self._disk = disk
        self.number, self.life = read_driver_commit(self._path)

    def note(self, number: int, life: str | None) -> None:
        """Store the reported commit; ignore a commit without an incarnation."""
        if not life or (number, life) == (self.number, self.life):
            return
        self.number, self.life = number, life
        write_note(self._disk, self._path, {"number": number, "life": life})


def read_driver_commit(path: Path) -> tuple[int, str | None]:
    """Return number and incarnation from a file; -1 and None if it is missing or unreadable."""
    noted = maybe_note(path, {"number": int, "life": str})
    return (_NO_NUMBER, None) if noted is None else (noted["number"], noted["life"])
