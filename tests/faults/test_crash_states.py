"""Thousands of states of a log after a power cut: each opens, and nothing synced is lost."""

import itertools
import logging
import random
from collections import Counter

import pytest

from sbp_core.errors import LogError
from sbp_core.log.boundaries import START_NAME
from tests.support.faults.crash_states import LifeOfALog, SteppedDisk

STATES = 2_000
LIVES_MAX = 60
ACTIONS = 60

PLACES = {
    ("append", "fdatasync", ".log"),
    ("append", "create", ".log"),
    ("append", "fsync_dir", "log"),
    ("append", "replace", ".idx"),
    ("append_unsynced", "pwritev", ".log"),
    ("retain", "fdatasync", ".log"),
    ("clean", "replace", START_NAME),
    ("clean", "remove", ".log"),
    ("clean", "pwritev", ".tmp"),
    ("clean", "replace", ".log"),
    ("open", "fsync_dir", "log"),
    ("open", "truncate", ".log"),
    ("open", "create", ".log"),
    ("note_end", "pwritev", ".0"),
    ("note_end", "pwritev", ".1"),
    ("open", "pwritev", ".log"),
}
"""Operations of the log that some of the states interrupt: the file, and the purpose."""


@pytest.fixture(autouse=True)
def few_words(caplog):
    """Thousands of logs report that they rebuild an index."""
    caplog.set_level(logging.CRITICAL, "sbp_core.log")


def test_a_power_cut_at_any_step_leaves_a_log_that_goes_on(rng, rounds):
    """That an index takes its name before it is synced does no harm: some were spoilt by that."""
    states, cuts, spoilt_index_count = set(), Counter(), 0
    for number in itertools.count():
        if number >= rounds(1) and len(states) >= STATES and cuts.keys() >= PLACES:
            break
        assert number < max(rounds(1), LIVES_MAX), PLACES - cuts.keys()
        life = LifeOfALog(random.Random(rng.getrandbits(64)))
        life.live(ACTIONS)
        states |= life.states
        cuts += life.cuts
        spoilt_index_count += life.spoilt_index_count
    print(f"{len(states)} states in {number} lives after {cuts.total()} power cuts")
    assert spoilt_index_count > 0


# Logs that break a promise, each of a build that is right otherwise.


class NoSync(SteppedDisk):
    """Groups are acknowledged before they are synced."""

    def open(self, path, *, is_writable):
        file = super().open(path, is_writable=is_writable)
        file.fdatasync = lambda: None
        return file


class NoSyncOfNewFiles(SteppedDisk):
    """Whole files take their names, and new segments are used, before they are synced."""

    def open(self, path, *, is_writable):
        file = super().open(path, is_writable=is_writable)
        file.fsync = lambda: None
        return file


class NoSyncOfNames(SteppedDisk):
    """Folders are never synced: names of new and replaced files are not durable."""

    def fsync_dir(self, directory):
        pass


class RemovedBeforeReplaced(SteppedDisk):
    """The cleaner removes a segment before the one that it wrote instead has the name."""

    def replace(self, source, target):
        if target.suffix == ".log":
            self.remove(target)
        super().replace(source, target)


class StartsTooLate(SteppedDisk):
    """The cleaner removes segments before the new start of the log is durable."""

    late = None

    def _begin_generation(self):
        super()._begin_generation()
        self.late = None

    def replace(self, source, target):
        if target.name == START_NAME:
            self.late = (source, target)
        else:
            super().replace(source, target)

    def remove(self, path):
        super().remove(path)
        if self.late is not None and path.suffix == ".log":
            super().replace(*self.late)
            self.late = None


@pytest.mark.faults
@pytest.mark.parametrize(
    "broken", [NoSync, NoSyncOfNewFiles, NoSyncOfNames, RemovedBeforeReplaced, StartsTooLate]
)
def test_a_broken_build_is_noticed(rng, broken):
    def live():
        for _ in range(LIVES_MAX):
            LifeOfALog(random.Random(rng.getrandbits(64)), broken).live(ACTIONS)

    with pytest.raises((AssertionError, LogError)) as caught:
        live()
    assert "after a power cut" in caught.value.__notes__[0]
