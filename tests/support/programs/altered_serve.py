"""`sbp serve` with alterations: altered_serve.py ALTERATION,ALTERATION,... serve OPTIONS

`small-segments` only brings about in seconds what would take gigabytes. The others break a promise
on purpose, each of a server that is right otherwise: to see that the tests notice.
"""

from __future__ import annotations

import sys
import time

from sbp_core import limits

SEGMENT_BYTES = 64 * limits.KIB
LATE_SYNC_SECONDS = 120


def small_segments() -> None:
    """The log begins a new segment every 64 KiB."""
    limits.SEGMENT_BYTES = limits.SEGMENT_BYTES_MIN = SEGMENT_BYTES


def volatile_disk() -> None:
    """Unsynced writes of the log are lost when the process is killed, as after a power cut."""
    from sbp_core.rangeserver import server
    from tests.support.disk import VolatileDisk

    server.OsDisk = VolatileDisk
    server.Patience = lambda _: None  # it waits for space of the real disk


def no_sync() -> None:
    """Appends are acknowledged without a sync."""
    from sbp_core.log.disk import OsFile
    from tests.support.disk import VolatileFile

    for file in (OsFile, VolatileFile):
        file.fdatasync = lambda _: None  # but fsync, with which segments begin, is one


def no_directory_sync() -> None:
    """The names of new segments are not synced."""
    from tests.support.disk import VolatileDisk

    VolatileDisk.fsync_dir = lambda *_: None


def repeated_sync() -> None:
    """A sync that failed is tried again, and then believed."""
    from sbp_core.log.disk import OsFile

    sync = OsFile.fdatasync

    def sync_again(file: OsFile) -> None:
        try:
            sync(file)
        except OSError:
            sync(file)

    OsFile.fdatasync = sync_again


def trusted_cache() -> None:
    """The log trusts the page cache after a failed sync."""
    from sbp_core.log.disk import OsFile

    OsFile.drop_cache = lambda _: None


def uncut_tail() -> None:
    """Torn writes stay in the log after a crash."""
    from sbp_core.log.recovery.opening import LastSegment

    LastSegment.repair = lambda _: None


def forgotten_seals() -> None:
    """Seals are answered and do not outlive the process."""
    from sbp_core.rangeserver.appending.commit import GroupCommitter
    from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeState
    from sbp_core.segment_format import EntryKind

    submit = GroupCommitter.submit
    ended = {RangeState.SEALED, RangeState.DELETED}

    def end_offset(hosted: HostedRange) -> int | None:
        return hosted.assigned_offset if hosted.state in ended else None

    def submit_the_rest(committer: GroupCommitter, entries, memory_bytes: int = 0):
        rest = [entry for entry in entries if entry.kind is not EntryKind.SEAL]
        return submit(committer, rest, memory_bytes)

    GroupCommitter.submit = submit_the_rest
    HostedRange.end_offset = property(end_offset)


def early_reads() -> None:
    """Batches can be read when they are written, and are synced and answered long after that."""
    from sbp_core.rangeserver.appending import commit as committing
    from sbp_core.segment_format import EntryKind

    def commit(committer: committing.GroupCommitter, submissions) -> None:
        entries = [entry for submission in submissions for entry in submission.entries]
        appended = []

        def write():
            appended.append(committer._log.append(entries, is_durable=False))
            committer._loop.call_soon_threadsafe(committer._publish, appended[0].ranges)
            if any(entry.kind is EntryKind.BATCH for entry in entries):
                time.sleep(LATE_SYNC_SECONDS)
            committer._log.sync()

        def on_durable():
            numbers = [{}] * len(submissions)  # of no copies
            committer._on_durable(submissions, numbers, appended[0], is_durable=True)

        committer._run(committing._Job(write, on_durable, submissions))

    committing.GroupCommitter._commit = commit


def no_dedupe() -> None:
    """A repeat is taken for the next batch of its writer."""
    from sbp_core.rangeserver.appending.append_items import Writers

    Writers.maybe_repeat = lambda *_: None
    Writers.check_next = lambda *_: None


def unverified_reads() -> None:
    """Entries read from the log are served without verification."""
    from sbp_core.log import bodies
    from sbp_core.segment_format import ENTRY_HEADER_BYTES

    bodies._verified = lambda _key, _slot, data: data[ENTRY_HEADER_BYTES:]


def no_checksums() -> None:
    """Frames that do not match their checksums are taken."""
    from sbp_core.wire import frame

    class Anything(int):
        def __ne__(self, _: object) -> bool:
            return False

    right = frame.crc32
    frame.crc32 = lambda parts: Anything(right(parts))


ALTERATIONS = {
    "small-segments": small_segments,  # comes first: defaults are taken when modules are loaded
    "volatile-disk": volatile_disk,
    "no-sync": no_sync,
    "no-directory-sync": no_directory_sync,
    "repeated-sync": repeated_sync,
    "trusted-cache": trusted_cache,
    "uncut-tail": uncut_tail,
    "forgotten-seals": forgotten_seals,
    "early-reads": early_reads,
    "no-dedupe": no_dedupe,
    "unverified-reads": unverified_reads,
    "no-checksums": no_checksums,
}


if __name__ == "__main__":
    wanted = set(sys.argv[1].split(","))
    assert wanted <= ALTERATIONS.keys(), wanted
    for name, alter in ALTERATIONS.items():
        if name in wanted:
            alter()

    from sbp_core import processes
    from sbp_core.cli.main import main

    processes.COMMAND[1:] = sys.argv[:2]  # range servers in processes of their own have them too

    sys.exit(main(sys.argv[2:]))
