"""Finds out whether a metadata file is as it was committed, and not older than it was."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata.history import NO_COMMIT, UNKNOWN_CONTENT, CommitId, CommitMark, History
from sbp_core.pd.metadata.sqlite_content import (
    commit_number_of,
    committed_row_counts,
    content_checksum_of,
    find_content_faults,
    lives_of,
)
from sbp_core.pd.metadata.sqlite_schema import CONTENT_VERSION, SCHEMA_VERSION, SCHEMA_VERSION_MIN

_PAGE_FAULTS_MAX: Final = 10
"""Faults that SQLite finds in a file and a report lists."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a metadata file is like; `version` 0 is that of an empty one."""

    version: int
    page_faults: tuple[str, ...] = ()
    """What SQLite finds wrong: such a file cannot be used at all."""
    content_faults: tuple[str, ...] = ()
    """Rows that are not as they were committed."""
    history_faults: tuple[str, ...] = ()
    """Commits that are missing, or may be."""
    foreign_servers: tuple[str, ...] = ()
    """Range servers beside the store that belong to another cluster."""
    commit: CommitId = NO_COMMIT
    row_counts: dict[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong."""
        return (
            *self.page_faults,
            *self.content_faults,
            *self.history_faults,
            *self.foreign_servers,
        )

    def remedy(self, directory: Path) -> str:
        """Return what to do about the faults of the store in a directory."""
        if self.foreign_servers:
            return "One of these folders is in the wrong place: bring the right one back"
        if self.page_faults or not self.version:
            return remedy_of_lost_metadata(directory)
        return (
            f"Bring the newest copy of {directory} back, or, if there is none, go on without what"
            f" is missing: `sbp pd accept {quote(str(directory))}`"
        )

    @property
    def can_be_accepted(self) -> bool:
        """Whether a placement driver can go on with what is there."""
        return bool(self.version) and not self.page_faults and not self.foreign_servers


def remedy_of_lost_metadata(directory: Path) -> str:
    """Return what to do where nothing can be read of the metadata in a directory."""
    return (
        f"The metadata cannot be repaired. Bring the newest copy of {directory} back. Without one,"
        " what is in the logs of the range servers cannot be served any more: begin a new cluster,"
        " in an empty data_dir"
    )


def connect(database: Path) -> sqlite3.Connection:
    """Open a metadata file as all its users do. Raises sqlite3.Error."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            # REPLACE deletes rows, which triggers do not see otherwise.
            "recursive_triggers = ON",
            # The whole file stays in memory once it was read and checked: what happens to the file
            # below a running server is not served. Nothing bounds that but the limits on rows.
            "cache_size = -2147483647",
            "mmap_size = 0",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def inspect_store(
    connection: sqlite3.Connection, database: Path, mark: CommitMark | None
) -> Inspection:
    """Read a whole metadata file, and compare it with its mark.

    Raises ConfigurationError for files of others and of other versions, sqlite3.Error for what
    cannot be read at all.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        return Inspection(0, history_faults=_find_history_faults(History((), 0), b"", mark))
    if not {"schema_version", "cluster"} <= tables:
        raise ConfigurationError(
            f"data_dir: {database} holds other data; choose an empty directory"
        )
    version = _version_of(connection, database)
    verdicts = connection.execute(f"PRAGMA integrity_check({_PAGE_FAULTS_MAX})").fetchall()
    if verdicts != [("ok",)]:
        return Inspection(version, page_faults=tuple(str(verdict) for (verdict,) in verdicts))
    if version < CONTENT_VERSION:
        faults = _find_history_faults(History((), 0), b"", mark)
        return Inspection(version, history_faults=faults)
    content_faults = find_content_faults(connection)
    if content_faults:
        return Inspection(version, content_faults=tuple(content_faults))
    history = History(lives_of(connection), commit_number_of(connection))
    if mark is None:
        mark_faults: tuple[str, ...] = ("it is missing, so nobody knows whether commits are",)
    else:
        mark_faults = _find_history_faults(history, content_checksum_of(connection), mark)
    return Inspection(
        version,
        history_faults=mark_faults,
        commit=history.last,
        row_counts=committed_row_counts(connection),
    )


def _version_of(connection: sqlite3.Connection, database: Path) -> int:
    rows = connection.execute("SELECT version FROM schema_version").fetchall()
    version = rows[0][0] if len(rows) == 1 else 0
    if not isinstance(version, int) or not SCHEMA_VERSION_MIN <= version <= SCHEMA_VERSION:
        raise ConfigurationError(
            f"data_dir: {database} has schema version {version!r}, this release reads"
            f" {SCHEMA_VERSION_MIN} to {SCHEMA_VERSION}; use the release that wrote it, or an"
            " empty directory"
        )
    return version


def _find_history_faults(
    history: History, content: bytes, mark: CommitMark | None
) -> tuple[str, ...]:
    if mark is None:
        return ()
    last = mark.maybe_last
    if last is None:
        return ("it is damaged, so nobody knows whether commits are missing",)
    if not history.has(last.commit):
        end = f"ends at {history.last}" if history.last.life_id else "is empty"
        return (f"{last.commit} was the last one, the store {end}",)
    if last.commit == history.last and last.content not in {content, UNKNOWN_CONTENT}:
        return (f"after {last.commit} the store had other content",)
    return ()
