"""A write that finds the disk full waits, and is repeated."""

import errno
import os
import threading

import pytest

from sbp_core.log.full_disk import Patience
from tests.support.clock import until


class FullDisk:
    """A disk that has no room for the first writes."""

    def __init__(self, full_count, code=errno.ENOSPC):
        self.count = 0
        self._full_count = full_count
        self._code = code

    def write(self):
        self.count += 1
        if self.count <= self._full_count:
            raise OSError(self._code, os.strerror(self._code))
        return "written"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_is_repeated_until_there_is_space(tmp_path, caplog, code):
    (tmp_path / "reserve").write_bytes(b"space")
    disk = FullDisk(2, code)
    assert Patience(tmp_path).wait_out(disk.write) == "written"
    assert disk.count == 3
    assert not (tmp_path / "reserve").exists()
    assert [each.message.split(" folder")[0] for each in caplog.records] == [
        "log waits",
        "log goes on",
    ]


def test_other_errors_are_raised_at_once(tmp_path):
    disk = FullDisk(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        Patience(tmp_path).wait_out(disk.write)
    assert disk.count == 1


def test_a_server_that_stops_waits_no_longer(tmp_path):
    patience, disk, errors = Patience(tmp_path), FullDisk(10**9), []

    def write():
        with pytest.raises(OSError, match="No space") as caught:
            patience.wait_out(disk.write)
        errors.append(caught.value)

    thread = threading.Thread(target=write)
    thread.start()
    until(lambda: disk.count >= 2)
    patience.end()
    thread.join(10)
    assert [each.errno for each in errors] == [errno.ENOSPC]
