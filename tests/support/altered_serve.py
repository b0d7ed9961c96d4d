"""`sbp serve` with alterations: altered_serve.py ALTERATION,ALTERATION,... serve OPTIONS

`small-segments` only brings about in seconds what would take gigabytes. The others break a promise
on purpose, each of a server that is right otherwise: to see that the tests notice.
"""

from __future__ import annotations

import sys

from sbp_core import limits

SEGMENT_BYTES = 64 * limits.KIB


def small_segments() -> None:
    """The log begins a new segment every 64 KiB."""
    limits.SEGMENT_BYTES = limits.SEGMENT_BYTES_MIN = SEGMENT_BYTES


def volatile_disk() -> None:
    """What the log did not sync is gone when the process is killed, as after a power cut."""
    from volatile_disk import VolatileDisk

    from sbp_core.rangeserver import server

    server.OsDisk = VolatileDisk


def no_sync() -> None:
    """Appends are acknowledged without a sync."""
    from volatile_disk import VolatileFile

    from sbp_core.log.disk import OsFile

    for file in (OsFile, VolatileFile):
        file.fdatasync = lambda _: None  # but fsync, with which segments begin, is one


def no_directory_sync() -> None:
    """The names of new segments are not synced."""
    from volatile_disk import VolatileDisk

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
    """What the page cache shows after a failed sync is believed."""
    from sbp_core.log.disk import OsFile

    OsFile.drop_cache = lambda _: None


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
    "no-checksums": no_checksums,
}


if __name__ == "__main__":
    wanted = set(sys.argv[1].split(","))
    assert wanted <= ALTERATIONS.keys(), wanted
    for name, alter in ALTERATIONS.items():
        if name in wanted:
            alter()

    from sbp_core.cli.main import main

    sys.exit(main(sys.argv[2:]))
