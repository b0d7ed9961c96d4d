"""Is a metadata file as it was committed, and not older than it was? And accepting it as it is.

`inspect_store` reads an open file, at each start of a placement driver. `check_store` does it for
a stopped one, on a copy (`sbp pd check`), and `accept_store` lets a damaged or older file be used
from now on (`sbp pd accept`).
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_core.log.disk import describe_os_error
from sbp_core.pd.metadata.checksums import UNREADABLE, find_content_faults, row_counts
from sbp_core.pd.metadata.data_dir import DATABASE_NAME, WRITE_AHEAD_LOG_NAME, DataDir
from sbp_core.pd.metadata.history import (
    MARK_NAME,
    NO_COMMIT,
    CommitId,
    CommitMark,
    History,
    Life,
    epoch_of,
)
from sbp_core.pd.metadata.sqlite_tables import accept_tables, commit_number_of, connect
from sbp_core.pd.metadata.tables import check_version
from sbp_core.pd.model import LogMark

DRIVER_NAME: Final = "placement-driver"
"""Name of its folder in the folder of `sbp serve`."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A range server beside the store: its folder, and what it knows of the store.

    `cluster_id` is empty, and `commit` is NO_COMMIT, if the range server does not know them.
    """

    folder: Path
    cluster_id: str
    commit: CommitId


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The state of a metadata file; `version` 0 is that of an empty one."""

    database: Path
    version: int = 0
    page_faults: tuple[str, ...] = ()
    """What SQLite finds wrong: a file with such faults cannot be used at all."""
    content_faults: tuple[str, ...] = ()
    """Rows that are not as they were committed."""
    history_faults: tuple[str, ...] = ()
    """Commits that are missing, or may be."""
    foreign_servers: tuple[str, ...] = ()
    """Range servers beside the store that belong to another cluster."""
    commit: CommitId = NO_COMMIT
    row_counts: dict[str, int] = field(default_factory=dict)
    marked: CommitId = NO_COMMIT
    """The last commit by the mark beside the file."""
    notes: tuple[str, ...] = ()
    """Damage that takes nothing away."""

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong: without faults a placement driver may start with the file."""
        return (
            *self.page_faults,
            *self.content_faults,
            *self.history_faults,
            *self.foreign_servers,
        )

    @property
    def remedy(self) -> str:
        """The remedy of the faults, in words."""
        directory = self.database.parent
        if self.foreign_servers:
            return "One of these folders is in the wrong place: restore the right one"
        if self.page_faults or not self.version:
            return remedy_of_lost_metadata(directory)
        return (
            f"Restore the newest copy of {directory}, or, without a copy, accept that commits"
            f" are missing: `sbp pd accept {quote(str(directory))}`"
        )

    @property
    def can_be_accepted(self) -> bool:
        """Whether `accept_store` can make the file usable."""
        return bool(self.version) and not self.page_faults and not self.foreign_servers


def find_store(folder: Path) -> Path:
    """Return the data directory of the placement driver that a folder stands for.

    It is that directory, or the one of `sbp serve`. Raises ConfigurationError if it is neither, or
    cannot be read.
    """
    try:
        for directory in (folder / DRIVER_NAME, folder):
            if any((directory / name).exists() for name in (DATABASE_NAME, MARK_NAME)):
                return directory
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be read: {error.strerror}; name a folder that this user can read"
        ) from error
    raise ConfigurationError(
        f"{folder} holds no metadata: name the data folder of a placement driver, or that of"
        " `sbp serve`"
    )


def check_store(directory: Path, witnesses: Sequence[Witness]) -> StoreReport:
    """Read all metadata in a directory, and change nothing.

    `witnesses` know commits that must have been. Raises ConfigurationError while a placement driver
    runs on it, and for files of others.
    """
    database = directory / DATABASE_NAME
    with copied(directory) as copy, ExitStack() as opened:
        mark = CommitMark.maybe_open(copy)
        if mark is not None:
            opened.callback(mark.close)
        try:
            connection = opened.enter_context(closing(connect(copy / DATABASE_NAME)))
            return inspect_store(connection, database, mark, witnesses)
        except UNREADABLE as error:
            return replace(_unread(database, mark), page_faults=(str(error),))


def maybe_log_mark_of(directory: Path, cluster_id: str, server_id: int) -> LogMark | None:
    """Return what a stopped placement driver knows of a range server's log; None if nothing.

    It knows nothing about servers of another cluster. Raises ConfigurationError as `check_store`
    does, and for metadata that are damaged.
    """
    found = check_store(directory, ())
    if found.page_faults or found.content_faults:
        raise ConfigurationError(f"{directory} is damaged, see `sbp pd check {directory}`")
    if not found.version:
        return None
    with copied(directory) as copy, closing(connect(copy / DATABASE_NAME)) as connection:
        rows = connection.execute(
            "SELECT server_id, log_id, position FROM log_marks"
            " WHERE server_id = ? AND ? = (SELECT id FROM cluster)",
            (server_id, cluster_id),
        ).fetchall()
    return LogMark(*rows[0]) if rows else None


@contextmanager
def copied(directory: Path) -> Iterator[Path]:
    """Yield a copy of the files in a directory, while no placement driver can use them."""
    with _locked(directory), tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        try:
            for each in (DATABASE_NAME, WRITE_AHEAD_LOG_NAME, MARK_NAME):
                if (directory / each).exists():
                    shutil.copyfile(directory / each, copy / each)
        except OSError as error:
            raise ConfigurationError(
                f"{directory} cannot be copied to {copy}: {describe_os_error(error)}"
            ) from error
        yield copy


def accept_store(directory: Path, witnesses: Sequence[Witness]) -> StoreReport:
    """Let a placement driver start with the metadata in a directory as they are.

    Missing commits are no longer asked for, and no id is given out twice: a new epoch begins.
    Returns what was wrong; metadata that are intact are left alone. Raises ConfigurationError as
    `check_store` does, and if the file cannot be read as a whole.
    """
    report = check_store(directory, witnesses)
    if not report.faults:
        return report
    if not report.can_be_accepted:
        raise ConfigurationError(
            f"{report.database} cannot be accepted: {'; '.join(report.faults)}. {report.remedy}"
        )
    known = [report.marked, *(each.commit for each in witnesses)]
    above = max([0, *(epoch_of(commit.life_id) for commit in known if commit.life_id)])
    with _locked(directory) as owned:
        try:
            with closing(connect(owned.database)) as file:
                commit = accept_tables(file, report.version, above)
        except UNREADABLE as error:
            raise ConfigurationError(
                f"{owned.database} cannot be accepted: {error}."
                f" {remedy_of_lost_metadata(directory)}"
            ) from error
        with closing(CommitMark.create(directory)) as mark:
            mark.write(commit)
            mark.sync()
    return report


@contextmanager
def _locked(directory: Path) -> Iterator[DataDir]:
    """Keep placement drivers away."""
    owned = DataDir(directory, is_made=False)
    try:
        yield owned
    finally:
        owned.release()


_PAGE_FAULTS_MAX: Final = 10
"""Faults that SQLite finds in a file and a report lists."""


def remedy_of_lost_metadata(directory: Path) -> str:
    """Return what to do where nothing can be read of the metadata in a directory."""
    return (
        f"The metadata cannot be repaired. Restore the newest copy of {directory}. Without a copy,"
        " the records in the logs of the range servers can no longer be served: start a new"
        " cluster in an empty data_dir"
    )


def inspect_store(
    connection: sqlite3.Connection,
    database: Path,
    mark: CommitMark | None,
    witnesses: Sequence[Witness] = (),
) -> StoreReport:
    """Read a whole metadata file, and compare it with its mark and its witnesses.

    Raises ConfigurationError for files of others and of other versions, sqlite3.Error for what
    cannot be read at all.
    """
    report = _unread(database, mark)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not tables:
        missed = [] if mark is None else _find_history_faults(History((), 0), mark)
        missed += [
            f"the store is empty, and {each.folder} belongs to cluster {each.cluster_id}"
            for each in witnesses
            if each.cluster_id
        ]
        return replace(report, history_faults=tuple(missed))
    if not {"schema_version", "cluster"} <= tables:
        raise ConfigurationError(
            f"data_dir: {database} holds other data; choose an empty directory"
        )
    version = _version_of(connection, database, is_by_alembic="alembic_version" in tables)
    report = replace(report, version=version)
    verdicts = connection.execute(f"PRAGMA integrity_check({_PAGE_FAULTS_MAX})").fetchall()
    if verdicts != [("ok",)]:
        return replace(report, page_faults=tuple(str(verdict) for (verdict,) in verdicts))
    if content_faults := find_content_faults(connection, version):
        return replace(report, content_faults=tuple(content_faults))
    history = _history_of(connection)
    ((own,),) = connection.execute("SELECT id FROM cluster")
    foreign = [each for each in witnesses if each.cluster_id not in {own, ""}]
    missed = _find_history_faults(history, mark) + [
        f"{each.folder}: knows {each.commit}, which the store lacks"
        for each in witnesses
        if each not in foreign and not history.has(each.commit)
    ]
    return replace(
        report,
        history_faults=tuple(missed),
        foreign_servers=tuple(
            f"{each.folder} belongs to cluster {each.cluster_id}, and these are the metadata of"
            f" cluster {own}"
            for each in foreign
        ),
        commit=history.last,
        row_counts=row_counts(connection),
    )


def _unread(database: Path, mark: CommitMark | None) -> StoreReport:
    """Return what the mark says of a file that was not read yet."""
    fault = None if mark is None else mark.maybe_fault
    last = None if mark is None else mark.last
    return StoreReport(
        database,
        marked=NO_COMMIT if last is None else last.commit,
        notes=() if fault is None else (fault,),
    )


def _version_of(connection: sqlite3.Connection, database: Path, *, is_by_alembic: bool) -> int:
    """Return the version of the tables; Alembic has recorded it since version 9."""
    statement = (
        "SELECT CAST(version_num AS INTEGER) FROM alembic_version"
        if is_by_alembic
        else "SELECT version FROM schema_version"
    )
    rows = connection.execute(statement).fetchall()
    return check_version(rows[0][0] if len(rows) == 1 else None, f"data_dir: {database}")


def _history_of(connection: sqlite3.Connection) -> History:
    """Return the commits of a store of any version, whose content is right."""
    rows = connection.execute("SELECT life_id, first_commit FROM lives ORDER BY life_number")
    return History([Life(*row) for row in rows], commit_number_of(connection))


def _find_history_faults(history: History, mark: CommitMark | None) -> list[str]:
    if mark is None or mark.last is None:
        state = "missing" if mark is None else "damaged"
        return [f"it is {state}, so it is unknown whether commits are missing too"]
    if history.has(mark.last.commit):
        return []
    end = f"ends at {history.last}" if history.last.life_id else "is empty"
    return [f"{mark.last.commit} was the last one, the store {end}"]
