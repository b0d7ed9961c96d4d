"""The commits of a store of metadata, as its tables have them, in both homes: see `history`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Text, bindparam, delete, insert, select, update

from sbp_core.pd.metadata.history import CommitId, History, Life, new_life_id, next_epoch
from sbp_core.pd.metadata.tables import cluster, last_commit, lives

NUMBER: Final = select(last_commit.c.number)
NEXT_NUMBER: Final = (
    update(last_commit)
    .values(number=last_commit.c.number + 1, content=bindparam("content", type_=Text()))
    .returning(last_commit.c.number)
)
LIVES: Final = select(lives.c.life_id, lives.c.first_commit).order_by(lives.c.life_number)
ADD_LIFE: Final = insert(lives)
LAST_STREAM_ID: Final = select(cluster.c.last_stream_id)


def history_of(connection: Connection) -> History:
    """Return the commits that a store has had."""
    rows = connection.execute(LIVES)
    return History([Life(*row) for row in rows], connection.execute(NUMBER).scalar_one())


def begin_epoch(connection: Connection, last_number: int, above: int) -> CommitId:
    """Begin a new epoch, above a known one, within a transaction; return its first commit."""
    stream_id, server_id = connection.execute(
        select(cluster.c.last_stream_id, cluster.c.last_server_id)
    ).one()
    start = next_epoch(stream_id, server_id, above)
    connection.execute(
        update(cluster).values(
            last_stream_id=start.last_stream_id,
            revision=start.last_stream_id,
            last_server_id=start.last_server_id,
        )
    )
    commit = CommitId(last_number + 1, new_life_id(start.epoch))
    connection.execute(delete(last_commit))
    connection.execute(insert(last_commit).values(number=commit.number))
    connection.execute(ADD_LIFE, {"life_id": commit.life_id, "first_commit": commit.number})
    return commit
