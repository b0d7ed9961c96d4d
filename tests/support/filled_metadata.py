"""A metadata store with something in every table, and whether another one says the same."""

from sbp_core.access.rights import Grant, Right
from sbp_core.errors import ConfigurationError, StatusError
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.model import NewStream, RangeServerRecord, SchemaRecord, SealedRange
from sbp_core.pd.txns.transactions import Manifest, Part

TABLES = ("cluster", "streams", "ranges", "replicas", "servers", "cursors", "writers", "txns")
MORE_TABLES = ("txn_parts", "aborted_txns", "schemas", "given_up_parts", "grants")


def contents(store):
    """All that the store says, but of its own starts."""
    rows = {
        table: store._database._execute(f"SELECT * FROM {table}") for table in TABLES + MORE_TABLES
    }
    named = store.streams_by_name([f"stream-{number}" for number in range(40)])
    return rows, named, store.schemas.maybe_newest(1), store.writers_before(3, 1)


def fill(store):
    store.servers.register(RangeServerRecord(store.servers.allocate_id(), "127.0.0.1:10911"))
    store.create_streams(
        [NewStream(f"stream-{number}", 1, 1, 60_000 + number, (1,), 7) for number in range(40)], 123
    )
    store.schemas.register([SchemaRecord(1, 1, "f", b"schema" * 2_000, 5)])
    store.grants.change([Grant("billing", Right.READ, "orders-*")], is_revoked=False)
    store.cursors.commit("group", [(number, 100 * number) for number in range(1, 30)], 9)
    store.seal_ranges([SealedRange(3, 0, 17, b"\x01" * 6_000)])
    parts = (Part("p-1-x", 2, 0, 5),)
    store.transactions.commit(Manifest("p", 1, parts, 5, b"digest--"), 50)
    store.transactions.abort([Part("q-1-x", 2, 0, 5)], 60)
    store.delete_streams([40])
    store.cursors.commit("group", [(number, 100 * number + 1) for number in range(1, 30)], 10)


def verdict(folder, expected):
    """Return whether a store has these contents when it is opened, None if a file is named."""
    try:
        store = open_store(folder)
    except ConfigurationError as error:
        return None if "metadata." in str(error) else False
    try:
        return contents(store) == expected
    except StatusError:
        return None
    finally:
        store.close()
