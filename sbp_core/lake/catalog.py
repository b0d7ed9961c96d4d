"""The catalog of the tables: one that PyIceberg's configuration names, or one in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sbp_core.errors import ConfigurationError, SbpError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_SECRETS: Final = ("secret", "token", "password", "credential", "key")
"""Parts of the names of properties whose values are shown to nobody."""


def open_catalog(name: str | None, warehouse: str | None) -> Catalog:
    """Return the catalog of a name, or else the one in SQLite in a warehouse folder.

    Without either it is PyIceberg's default catalog. Raises ConfigurationError for a configuration
    with which no catalog can be opened, else SbpError: the catalog may be there later.
    """
    require_pyiceberg()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NotInstalledError
    from sqlalchemy.exc import ArgumentError

    try:
        if name is not None or warehouse is None:
            return load_catalog(name)
        folder = Path(warehouse).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return SqlCatalog(
            "sbp",
            uri=f"sqlite:///{folder / 'catalog.db'}",
            warehouse=folder.as_uri(),
            **{"py-io-impl": "sbp_core.lake.synced_files.SyncedFileIO"},
        )
    except Exception as error:
        text = f"the catalog cannot be opened: {_first_line(error)}"
        if isinstance(error, ValueError | NotInstalledError | ArgumentError):
            raise ConfigurationError(text) from error
        raise SbpError(text) from error


def require_pyiceberg() -> None:
    """Raise ConfigurationError if PyIceberg is not installed."""
    try:
        import pyiceberg.catalog.sql  # noqa: F401 - only whether it can be imported
    except ImportError as error:
        raise ConfigurationError(
            "tables of streams need PyIceberg: pip install 'sbp-spark[lake]'"
        ) from error


def describe_error(error: Exception, catalog: Catalog) -> str:
    """Return the kind and first line of an error, without secrets of the catalog's properties."""
    text = _first_line(error)
    for key, value in catalog.properties.items():
        secret = value if any(each in key.lower() for each in _SECRETS) else _password(value)
        text = text.replace(secret, "***") if secret else text
    return text


def _first_line(error: Exception) -> str:
    """Return the kind of an error and its first line: SQLAlchemy adds the statement below."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _password(value: str) -> str | None:
    try:
        return urlsplit(value).password
    except ValueError:
        return None
