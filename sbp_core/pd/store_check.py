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
from sbp_core.pd.commit_mark import MARK_NAME, UNKNOWN_CONTENT, CommitMark
from sbp_core.pd.data_dir import DATABASE_NAME, WRITE_AHEAD_LOG_NAME, DataDir
from sbp_core.pd.history import NO_COMMIT, CommitId, epoch_of, new_life_id
from sbp_core.pd.sqlite_content import (
    UNREADABLE,
    add_life,
    commit_number_of,
    has_commit,
    take_stock,
)
from sbp_core.pd.sqlite_inspection import Inspection, connect, inspect_store
from sbp_core.pd.sqlite_schema import CONTENT_VERSION
from sbp_core.pd.store_epochs import begin_epoch

DRIVER_NAME: Final = "placement-driver"
"""Of its folder in the one of `sbp serve`."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A commit that somebody beside the store knows of, and where that is written."""

    path: Path
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

    `witnesses` are commits that must have been. Raises ConfigurationError while a placement driver
    runs on it, and for files of others.
    """
    with _locked(directory) as owned, tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        try:
            for each in (DATABASE_NAME, WRITE_AHEAD_LOG_NAME, MARK_NAME):
                if (directory / each).exists():
                    shutil.copyfile(directory / each, copy / each)
        except OSError as error:
            raise ConfigurationError(
                f"{directory} cannot be copied to {copy}: {describe_os_error(error)}"
            ) from error
        mark = CommitMark.maybe_open(copy)
        found = _inspect(owned.database, copy / DATABASE_NAME, mark, witnesses)
    if mark is None:
        return StoreReport(owned.database, found)
    marked = NO_COMMIT if mark.maybe_last is None else mark.maybe_last.commit
    notes = () if mark.maybe_fault is None else (mark.maybe_fault,)
    return StoreReport(owned.database, found, marked, notes)


def accept_store(directory: Path, witnesses: list[Witness]) -> StoreReport:
    """Let a placement driver start with the metadata in a directory as they are.

    Commits that are missing are not asked for any more, and no id is given out twice: a new epoch
    begins. Returns what was wrong; metadata that are intact are left alone. Raises
    ConfigurationError as `check_store` does, and if the file cannot be read as a whole.
    """
    report = check_store(directory, witnesses)
    if report.is_intact:
        return report
    if report.found.page_faults or not report.found.version:
        raise ConfigurationError(
            f"{report.database} cannot be accepted: {'; '.join(report.found.faults)}. Restore it"
            " from a backup"
        )
    known = [report.marked, *(each.commit for each in witnesses)]
    above = max([0, *(epoch_of(commit.life_id) for commit in known if commit.life_id)])
    with _locked(directory) as owned:
        try:
            commit = _begin_epoch(owned.database, report.found.version, above)
        except UNREADABLE as error:
            raise ConfigurationError(
                f"{owned.database} cannot be accepted: {error}. Restore it from a backup"
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
            if found.version < CONTENT_VERSION or found.content_faults or found.page_faults:
                return found
            missed = tuple(
                f"{witness.path}: {witness.commit} was told of"
                for witness in witnesses
                if not has_commit(connection, witness.commit)
            )
            return replace(found, history_faults=(*found.history_faults, *missed))
    except UNREADABLE as error:
        return Inspection(0, page_faults=(str(error),))
    finally:
        if mark is not None:
            mark.close()
