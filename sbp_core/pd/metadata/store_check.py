"""Checking the metadata of a stopped placement driver, and accepting it as it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_core.log.disk import describe_os_error
from sbp_core.pd.data_dir import DATABASE_NAME, WRITE_AHEAD_LOG_NAME, DataDir
from sbp_core.pd.metadata.history import (
    MARK_NAME,
    NO_COMMIT,
    UNKNOWN_CONTENT,
    CommitId,
    CommitMark,
    begin_epoch,
    epoch_of,
    new_life_id,
)
from sbp_core.pd.metadata.sqlite_content import (
    UNREADABLE,
    add_life,
    commit_number_of,
    has_commit,
    take_stock,
)
from sbp_core.pd.metadata.sqlite_inspection import (
    Inspection,
    connect,
    inspect_store,
    remedy_of_lost_metadata,
)
from sbp_core.pd.metadata.sqlite_schema import CONTENT_VERSION
from sbp_core.pd.model import LogMark

DRIVER_NAME: Final = "placement-driver"
"""Of its folder in the one of `sbp serve`."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A range server beside the store: its folder, and what it knows of the store.

    `cluster_id` is empty, and `commit` is none, if it does not know that.
    """

    folder: Path
    cluster_id: str
    commit: CommitId


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What is known of the metadata in a directory."""

    database: Path
    found: Inspection
    marked: CommitId = NO_COMMIT
    notes: tuple[str, ...] = ()
    """Damage that takes nothing away."""

    @property
    def is_intact(self) -> bool:
        """Whether a placement driver may start with it."""
        return not self.found.faults

    @property
    def remedy(self) -> str:
        """What to do if it is not."""
        return self.found.remedy(self.database.parent)


def find_store(folder: Path) -> Path:
    """Return the data directory of the placement driver that a folder stands for.

    It is that directory, or the one of `sbp serve`. Raises ConfigurationError if it is neither.
    """
    for directory in (folder / DRIVER_NAME, folder):
        if any((directory / name).exists() for name in (DATABASE_NAME, MARK_NAME)):
            return directory
    raise ConfigurationError(
        f"{folder} holds no metadata: name the data folder of a placement driver, or that of"
        " `sbp serve`"
    )


def check_store(directory: Path, witnesses: list[Witness]) -> StoreReport:
    """Read all metadata in a directory, and change nothing.

    `witnesses` know commits that must have been. Raises ConfigurationError while a placement driver
    runs on it, and for files of others.
    """
    database = directory / DATABASE_NAME
    with _copied(directory) as copy:
        mark = CommitMark.maybe_open(copy)
        found = _inspect(database, copy / DATABASE_NAME, mark, witnesses)
    if mark is None:
        return StoreReport(database, found)
    marked = NO_COMMIT if mark.maybe_last is None else mark.maybe_last.commit
    notes = () if mark.maybe_fault is None else (mark.maybe_fault,)
    return StoreReport(database, found, marked, notes)


def maybe_log_mark_of(directory: Path, cluster_id: str, server_id: int) -> LogMark | None:
    """Return what a stopped placement driver was told of a range server's log; None if nothing.

    So it is if that server is of another cluster, too. Raises ConfigurationError as `check_store`
    does, and for metadata that are damaged.
    """
    with _copied(directory) as copy:
        found = _inspect(directory / DATABASE_NAME, copy / DATABASE_NAME, None, [])
        if found.page_faults or found.content_faults:
            raise ConfigurationError(f"{directory} is damaged, see `sbp pd check {directory}`")
        if found.version < CONTENT_VERSION:
            return None
        with closing(connect(copy / DATABASE_NAME)) as connection:
            rows = connection.execute(
                "SELECT server_id, log_id, position FROM log_marks"
                " WHERE server_id = ? AND ? = (SELECT id FROM cluster)",
                (server_id, cluster_id),
            ).fetchall()
    return LogMark(*rows[0]) if rows else None


@contextmanager
def _copied(directory: Path) -> Iterator[Path]:
    """Keep placement drivers away, and make a copy of what is in a directory, for a while."""
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


def accept_store(directory: Path, witnesses: list[Witness]) -> StoreReport:
    """Let a placement driver start with the metadata in a directory as they are.

    Commits that are missing are not asked for any more, and no id is given out twice: a new epoch
    begins. Returns what was wrong; metadata that are intact are left alone. Raises
    ConfigurationError as `check_store` does, and if the file cannot be read as a whole.
    """
    report = check_store(directory, witnesses)
    if report.is_intact:
        return report
    if not report.found.can_be_accepted:
        raise ConfigurationError(
            f"{report.database} cannot be accepted: {'; '.join(report.found.faults)}."
            f" {report.remedy}"
        )
    known = [report.marked, *(each.commit for each in witnesses)]
    above = max([0, *(epoch_of(commit.life_id) for commit in known if commit.life_id)])
    with _locked(directory) as owned:
        try:
            commit = _begin_epoch(owned.database, report.found.version, above)
        except UNREADABLE as error:
            raise ConfigurationError(
                f"{owned.database} cannot be accepted: {error}."
                f" {remedy_of_lost_metadata(directory)}"
            ) from error
        with closing(CommitMark.create(directory)) as mark:
            mark.write(commit, UNKNOWN_CONTENT)
            mark.sync()
    return report


def _begin_epoch(database: Path, version: int, above: int) -> CommitId:
    """Accept what is in a file, in one transaction; return the commit, if its version has any."""
    with closing(connect(database)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        epoch = begin_epoch(connection, above)
        commit = NO_COMMIT
        if version >= CONTENT_VERSION:
            number = commit_number_of(connection) + 1
            commit = CommitId(number, new_life_id(epoch))
            add_life(connection, commit.life_id, number)
            take_stock(connection, number)
        connection.execute("COMMIT")
        return commit


@contextmanager
def _locked(directory: Path) -> Iterator[DataDir]:
    """Keep placement drivers away."""
    owned = DataDir(directory, is_made=False)
    try:
        yield owned
    finally:
        owned.release()


def _inspect(
    database: Path, copy: Path, mark: CommitMark | None, witnesses: list[Witness]
) -> Inspection:
    try:
        with closing(connect(copy)) as connection:
            found = inspect_store(connection, database, mark)
            if not found.version:
                missed = [
                    f"the store is empty, and {each.folder} belongs to cluster {each.cluster_id}"
                    for each in witnesses
                    if each.cluster_id
                ]
                return replace(found, history_faults=(*found.history_faults, *missed))
            if found.version < CONTENT_VERSION or found.content_faults or found.page_faults:
                return found
            ((own,),) = connection.execute("SELECT id FROM cluster")
            foreign = [each for each in witnesses if each.cluster_id not in {own, ""}]
            missed = [
                f"{each.folder}: {each.commit} was told of"
                for each in witnesses
                if each not in foreign and not has_commit(connection, each.commit)
            ]
            return replace(
                found,
                history_faults=(*found.history_faults, *missed),
                foreign_servers=tuple(
                    f"{each.folder} belongs to cluster {each.cluster_id}, and these are the"
                    f" metadata of cluster {own}"
                    for each in foreign
                ),
            )
    except UNREADABLE as error:
        return Inspection(0, page_faults=(str(error),))
    finally:
        if mark is not None:
            mark.close()
