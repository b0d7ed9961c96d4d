"""Writers of the blocking and the asyncio client: each batch is appended once, or in doubt."""

from __future__ import annotations

import pytest

from sbp_core import limits
from sbp_core.client import AppendItem, AppendOutcome, RangeInfo, Writer
from sbp_core.errors import ConfigurationError

APPENDED = AppendOutcome(1, 0, 7)
PIECE = RangeInfo(1, 0, 0, None, 0, ("127.0.0.1:1",))


def items(*data):
    return [AppendItem(1, each) for each in data]


def test_a_writer_does_one_thing_at_a_time() -> None:
    writer = Writer()
    first = writer._begin()
    with pytest.raises(ConfigurationError, match="one append at a time"):
        writer._begin()
    first.add(items(b"a"))
    first.on_appended(0, APPENDED)
    first.end((), is_complete=True)
    second = writer._begin()
    second.add(items(b"b"))
    assert second.marks(0, PIECE).sequence == 1


def test_batches_after_one_in_doubt_are_in_doubt_too() -> None:
    """Its number is taken: another batch under it would pass for a repeat, and be lost."""
    writer = Writer()
    first = writer._begin()
    first.add(items(b"a", b"b", b"c", b"d"))
    first.on_appended(0, APPENDED)
    first.on_appended(2, APPENDED)
    first.end({1}, is_complete=False)
    second = writer._begin()
    with pytest.raises(ConfigurationError, match="in doubt"):
        second.add(items(b"b", b"x"))
    assert second.add(items(b"b", b"c", b"e")) == [0, 1]
    assert [second.marks(index, PIECE).sequence for index in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * (limits.WRITER_ID_LENGTH_MAX + 1)])
def test_a_writer_needs_a_name_that_servers_take(name) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a writer"):
        Writer(name)


def test_writers_have_names_of_their_own() -> None:
    assert Writer().writer_id != Writer().writer_id
