"""Staged appends: what is taken, what is refused, and that nobody reads any of it."""

import asyncio

from staged_appends import (
    end,
    letters_of,
    one_stream,
    open_txns,
    read_staged,
    stage,
)


def run(folder, body, **options):
    async def main():
        async with one_stream(folder, **options) as parts:
            await asyncio.wait_for(body(*parts), 60)

    asyncio.run(main())


def test_what_is_staged_is_there_once_and_read_by_nobody(tmp_path):
    async def body(cluster, stream_id, client):
        assert await stage(client, stream_id, "t", "ab", "c") == [-1, -1]
        assert await stage(client, stream_id, "t", "ab", "c", "d") == [-1, -1, -1]
        assert await letters_of(cluster, stream_id) == ""
        assert await read_staged(client, stream_id, "t") == ("abcd", 3)
        assert await open_txns(client) == [("t", 0, 4)]
        assert await end(client, stream_id, "t") == (0, 4)
        assert await letters_of(cluster, stream_id) == "abcd"
        assert await open_txns(client) == []

    run(tmp_path, body)
