"""Several placement drivers on one PostgreSQL database: one leads, and only it can decide."""

import asyncio
import json
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import text, update

from sbp_core.cli.main import main
from sbp_core.errors import (
    ConfigurationError,
    NotLeaderError,
    Outcome,
    RequestTimeoutError,
    StatusError,
    StoreUnavailableError,
)
from sbp_core.pd.metadata import database
from sbp_core.pd.metadata.history import epoch_of
from sbp_core.pd.metadata.leadership import Leader, Leadership, Node
from sbp_core.pd.metadata.postgresql_offline import accept_database, check_database
from sbp_core.pd.metadata.store import StoreThread, open_store
from sbp_core.pd.metadata.tables import SCHEMA_VERSION, cluster
from sbp_core.pd.model import NewStream
from tests.support.metadata import (
    NO_LEASE_MS,
    TO_FIRST_RELEASE,
    PostgresqlHome,
    name_of,
    next_term,
    pooler,
)

LONG_LEASE_MS = 600_000


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


def names(store):
    return [stream.name for stream in store.streams_after(-1, 10)]


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            connection.execute(each)


@pytest.fixture
def url(postgresql):
    return postgresql.new_database()


@pytest.fixture
def opened(url):
    """Opens stores of the database, which do not lead yet."""
    stores = []

    def open_another():
        stores.append(open_store(url))
        return stores[-1]

    yield open_another
    for store in stores:
        store.close()


@pytest.fixture
def claims(url, opened):
    """Makes claims to lead, by name."""
    opened()
    made = []

    def claim(name, lease_ms=LONG_LEASE_MS):
        made.append(Leadership(url, name, f"{name}:1", lease_ms))
        return made[-1]

    yield claim
    for each in made:
        each.close()


def test_nobody_leads_at_first(claims):
    assert claims("a").current() == Leader(0, "", "", False)


def test_a_migration_ends_the_term_of_an_older_release(url, opened, claims):
    older, claim = opened(), claims("older")
    older.lead(claim.hold())
    create(older, "before")
    execute(url, *TO_FIRST_RELEASE)
    newer = opened()
    with pytest.raises(NotLeaderError):
        create(older, "refused")
    assert not claim.current().is_leading
    newer.lead(next_term(url))
    create(newer, "after")
    assert names(newer) == ["before", "after"]


def test_an_older_release_does_not_lead_once_the_metadata_are_migrated(url, claims):
    a, b = claims("a", NO_LEASE_MS), claims("b")
    assert a.hold() == 1
    execute(url, "UPDATE alembic_version SET version_num = '99'")
    for each in (a, b):  # one that led, one that did not
        with pytest.raises(StatusError, match=r"schema version 99.* upgrade it"):
            each.hold()
    assert b.current().term == 1
    assert [each.name for each in b.nodes()] == ["a"]


def test_one_leads_until_its_lease_ends(claims):
    a, b = claims("a"), claims("b")
    assert a.hold() == 1
    assert b.hold() is None
    assert a.hold() == 1
    assert b.current() == Leader(1, "a", "a:1", True)
    a.resign()
    assert b.current() == Leader(1, "a", "a:1", False)
    assert b.hold() == 2
    assert a.hold() is None
    assert a.current() == Leader(2, "b", "b:1", True)


def test_a_lease_that_ran_out_is_renewed_if_nobody_took_over(claims):
    a = claims("a", NO_LEASE_MS)
    assert [a.hold(), a.hold()] == [1, 1]
    assert claims("b", NO_LEASE_MS).hold() == 2
    assert a.hold() == 3


def test_a_process_that_starts_again_under_its_name_has_to_wait(claims):
    assert claims("a").hold() == 1
    assert claims("a").hold() is None


def test_a_resignation_does_not_end_the_lease_of_another(claims):
    a, b = claims("a", NO_LEASE_MS), claims("b")
    assert (a.hold(), b.hold()) == (1, 2)
    a.resign()
    assert b.current().is_leading


def test_a_store_that_does_not_lead_changes_nothing(opened):
    store = opened()
    with pytest.raises(NotLeaderError):
        create(store, "a")
    assert names(store) == []
    with pytest.raises(NotLeaderError):
        store.lead(7)


def test_a_leader_that_was_paused_cannot_write_once_another_took_over(url, opened):
    paused, other = opened(), opened()
    paused.lead(next_term(url, "paused"))
    create(paused, "before")
    other.lead(next_term(url, "other"))
    with pytest.raises(NotLeaderError):
        create(paused, "after")
    create(other, "other")
    assert names(other) == ["before", "other"]
    paused.lead(next_term(url, "paused"))
    create(paused, "again")
    with pytest.raises(NotLeaderError):
        create(other, "late")
    assert names(paused) == ["before", "other", "again"]


def test_nobody_takes_over_while_a_transaction_of_the_leader_runs(url, opened):
    store = opened()
    store.lead(next_term(url))
    taker = psycopg.connect(url, autocommit=True)
    taker.execute("SET lock_timeout = 50")
    with store.database.transaction(), pytest.raises(psycopg.errors.LockNotAvailable):
        taker.execute("UPDATE leader SET term = term + 1")
    taker.execute("UPDATE leader SET term = term + 1")
    taker.close()
    with pytest.raises(NotLeaderError):
        create(store, "a")


def test_a_leader_that_is_paused_in_a_transaction_does_not_keep_others_away(url, opened):
    paused, other = opened(), opened()
    paused.lead(next_term(url, "paused"))

    def pause_while_another_takes_over():
        with paused.database.transaction():
            create_in_transaction(paused)
            # Waits until the database ends the silent session, which holds the row of the leader.
            other.lead(next_term(url, "other"))
            create_in_transaction(paused)

    with pytest.raises(StatusError):
        pause_while_another_takes_over()
    assert names(other) == []
    with pytest.raises(NotLeaderError):
        create(paused, "late")
    create(other, "other")
    assert names(other) == ["other"]


def create_in_transaction(store):
    store.database.change(update(cluster), revision=7)


def test_a_read_of_a_former_leader_is_not_used(url, opened):
    async def main():
        thread = await StoreThread.open(opened)
        assert await thread.run(lambda store: store.lead(next_term(url, "paused"))) is None
        assert await thread.run(names) == []
        other = opened()

        def read_while_another_takes_over(store):
            found = names(store)
            other.lead(next_term(url, "other"))
            return found

        with pytest.raises(NotLeaderError):
            await thread.run(read_while_another_takes_over)
        with pytest.raises(NotLeaderError):
            await thread.run(names)

    asyncio.run(main())


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_change_of_a_former_leader_may_have_been_made(
    postgresql, url, opened, is_lost, monkeypatch
):
    """It committed, or lost the connection while it did, before another one took over."""

    async def main():
        thread = await StoreThread.open(opened)
        await thread.run(lambda store: store.lead(next_term(url, "paused")))
        other = opened()

        def change_while_another_takes_over(store):
            if is_lost:
                monkeypatch.setattr(database, "failpoint", lambda _: postgresql.end_sessions(url))
            with suppress(StatusError):
                create(store, "a")
            monkeypatch.undo()
            with suppress(StatusError):
                names(other)  # its session ended, too
            other.lead(next_term(url, "other"))
            return names(store)

        with pytest.raises(RequestTimeoutError) as caught:
            await thread.run(change_while_another_takes_over)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert names(other) == ([] if is_lost else ["a"])
        with pytest.raises(NotLeaderError):
            await thread.run(lambda store: create(store, "b"))

    asyncio.run(main())


def test_a_lost_connection_fails_one_call_retriably_and_is_opened_again(postgresql, url, opened):
    store = opened()
    store.lead(next_term(url))
    create(store, "a")
    assert store.capacity._count("streams") == 1
    postgresql.end_sessions(url)
    with pytest.raises(StoreUnavailableError, match="metadata store failed"):
        create(store, "lost")
    create(store, "b")
    assert names(store) == ["a", "b"]
    assert store.capacity._count("streams") == 2


def test_a_new_leader_counts_on_in_a_life_of_its_own(url, opened):
    first, second = opened(), opened()
    first.lead(next_term(url, "first"))
    create(first, "a")
    known = first.last_commit
    second.lead(next_term(url, "second"))
    assert second.database.has_commit(known)
    assert second.last_commit.number == known.number + 1
    assert second.last_commit.life_id != known.life_id
    before = second.last_commit
    second.delete_streams([99])
    assert second.last_commit == before


def test_a_database_that_was_restored_from_a_backup_is_noticed_and_can_be_accepted(
    postgresql, capsys
):
    url = postgresql.new_database()
    home = PostgresqlHome(url)
    store = home.open()
    create(store, "a")
    home.close()
    backup = postgresql.copy_of(url)
    store = home.open()
    (lost_id,) = create(store, "b")
    lost = store.last_commit
    home.close()
    restored = PostgresqlHome(backup)
    store = restored.open()
    assert not store.database.has_commit(lost)
    with pytest.raises(StatusError, match=f"knows {lost}.*sbp pd accept"):
        store.database.check_history(lost)
    with pytest.raises(StatusError, match="an older copy"):
        create(store, "c")
    restored.close()
    assert main(["pd", "accept", backup]) == 0
    assert "accepted after commit" in capsys.readouterr().out
    store = restored.open()
    store.database.check_history(lost)
    assert epoch_of(store.last_commit.life_id) > 0
    assert create(store, "c")[0] > lost_id + (1 << 39)
    restored.close()


def test_a_database_is_not_accepted_while_a_placement_driver_leads(url, claims):
    claims("a").hold()
    with pytest.raises(ConfigurationError, match="stop all of them first"):
        accept_database(url)


def test_a_database_is_shown(url, opened, claims, capsys):
    assert main(["pd", "check", url]) == 0
    assert f"schema version {SCHEMA_VERSION}, " in capsys.readouterr().out
    claims("a").hold()
    store = opened()
    store.lead(check_database(url).leader.term)
    create(store, "one", "two")
    assert main(["pd", "check", "--json", url]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"]["streams"] == 2
    assert (shown["commit"], shown["life"]) == (
        store.last_commit.number,
        store.last_commit.life_id,
    )
    assert shown["leader"] == "a:1"
    assert main(["pd", "check", url]) == 0
    assert "term 1, a at a:1 leads" in capsys.readouterr().out


def test_an_empty_database_is_shown_and_left_empty(url, capsys):
    assert main(["pd", "check", url]) == 0
    assert "schema version 0, 0 tables" in capsys.readouterr().out
    with psycopg.connect(url) as connection:
        assert (
            connection.execute("SELECT * FROM pg_tables WHERE schemaname = 'public'").rowcount == 0
        )


def test_all_that_announced_themselves_lately_are_named(url, claims):
    a, b = claims("a"), claims("b")
    a.hold(), b.hold()
    nodes = (Node("a", "a:1", True), Node("b", "b:1", False))
    assert a.nodes() == b.nodes() == nodes
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE placement_drivers SET seen_at = now() - interval '2 hours' WHERE name = 'a'"
        )
    assert b.nodes() == nodes[1:]
    a.hold()
    assert b.nodes() == nodes
    a.resign()
    assert b.nodes() == (Node("a", "a:1", False), Node("b", "b:1", False))


@pytest.mark.parametrize(
    ("home", "cause"),
    [
        ("mysql://h/d", "mysql://"),
        ("sqlite:///somewhere/other.db", "metadata.sqlite"),
        ("postgresql://nobody:secret@127.0.0.1:1/none", "cannot be used.* correct the URL"),
        ("postgresql://nobody@h1:5432,h2:5432/none", r"host=HOST:PORT&host=HOST:PORT"),
    ],
)
def test_a_home_that_cannot_be_used_is_refused(home, cause):
    with pytest.raises(ConfigurationError, match=cause) as caught:
        open_store(home)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("drops", "cause"),
    [(False, "unsupported startup parameter"), (True, "lost idle_in_transaction_session_timeout")],
)
def test_a_pooler_between_is_refused(url, drops, cause):
    with pooler(url, drops=drops) as pooled, pytest.raises(ConfigurationError) as caught:
        open_store(pooled)
    assert cause in str(caught.value)
    assert "connect to PostgreSQL directly" in str(caught.value)


def test_a_standby_is_refused(url, opened):
    opened()
    execute(url, f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = on")
    with pytest.raises(ConfigurationError, match="session is read-only; name the primary"):
        opened()


def test_a_primary_that_turns_read_only_is_unavailable_and_left(postgresql, url, opened, claims):
    store, claim = opened(), claims("a")
    store.lead(claim.hold())
    session = store.database.query(text("SELECT pg_backend_pid()"))
    with postgresql.read_only():
        with pytest.raises(StoreUnavailableError, match="read-only"):
            create(store, "lost")
        for cause in ("cannot execute INSERT in a read-only", "session is read-only"):
            with pytest.raises(StoreUnavailableError, match=cause):
                claim.hold()
    assert claim.hold() == 1
    create(store, "a")
    assert store.database.query(text("SELECT pg_backend_pid()")) != session


def test_a_database_of_others_is_refused(url):
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE streams (photo integer)")
    with pytest.raises(ConfigurationError, match="holds other data"):
        open_store(url)


def test_a_database_of_a_newer_version_is_refused(url, opened):
    opened()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '99'")
    with pytest.raises(ConfigurationError, match="schema version 99"):
        opened()


def test_a_url_of_sqlite_names_the_file_in_a_data_directory(tmp_path):
    url = f"sqlite:///{tmp_path}/metadata.sqlite"
    open_store(url).close()
    assert (tmp_path / "metadata.sqlite").exists()
    assert main(["pd", "check", url]) == 0
