"""A copy takes entries only behind the very entries that it has: a number alone does not do."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sbp_core.errors import WriterGapError
from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import RangeState
from sbp_core.log.states.replicated_entries import number_after
from sbp_core.rangeserver.replicating.secondary import Secondary
from sbp_core.records.envelope import with_base_offset
from sbp_core.replication import Prefix
from sbp_core.segment_format import EntryKind
from tests.support.cluster import rows_batch

KEY = (1, 0)
NOTHING = Prefix()


class KeepingCommitter:
    """Notes what it is to write; nothing is durable before the end of the test."""

    def __init__(self):
        self.entries = []

    def submit(self, entries, _memory_bytes, _key):
        self.entries += entries
        return asyncio.get_running_loop().create_future()

    def forgive(self, key):
        pass


def entry(number, value):
    body = b"".join(with_base_offset(memoryview(rows_batch([value], KEY[0])), number))
    return Entry(EntryKind.BATCH, *KEY, number, 1, body)


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "accepted"])
@pytest.mark.parametrize("other", ["number", "digest"])
def test_entries_behind_other_entries_are_refused(is_durable, other):
    first, second = entry(0, b"a"), entry(1, b"b")
    has = number_after(NOTHING, first)
    before = replace(has, seq=2) if other == "number" else replace(has, digest=bytes(16))
    hosted = SimpleNamespace(
        key=KEY,
        stream_id=KEY[0],
        range_index=KEY[1],
        state=RangeState.OPEN,
        durable=has if is_durable else NOTHING,
    )
    committer = KeepingCommitter()
    secondary = Secondary(None, committer)

    async def body():
        if not is_durable:
            secondary.append(hosted, NOTHING, [first])
        written = len(committer.entries)
        with pytest.raises(WriterGapError) as caught:
            secondary.append(hosted, before, [second])
        assert caught.value.detail == WriterGapError.encode_expected(2)
        assert len(committer.entries) == written
        secondary.append(hosted, has, [second])
        assert committer.entries[-1] is second

    asyncio.run(body())
