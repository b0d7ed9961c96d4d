"""The files with the quotas of identities, which are read again at SIGHUP."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import read_regular
from sbp_core.settings.listening import ListenerSettings
from sbp_core.settings.quota_settings import KEYS, NO_RULES, QuotaRules, rules_of

_LOG: Final = logging.getLogger(__name__)


class Change(NamedTuple):
    """A key of the quota of a subject, or of EACH, with its former and its present value."""

    identity: str
    key: str
    former: int
    value: int


EACH: Final = "*"
"""Stands for identities without a quota of their own."""


def _changes(former: QuotaRules, rules: QuotaRules) -> list[Change]:
    quotas = [(EACH, former.default, rules.default)]
    quotas += [
        (subject, former.of(subject), rules.of(subject))
        for subject in former.by_subject.keys() | rules.by_subject.keys()
    ]
    return [
        Change(identity, key, getattr(before, key), getattr(after, key))
        for identity, before, after in quotas
        for key in KEYS
        if getattr(before, key) != getattr(after, key)
    ]


class QuotaFile:
    """The rules in a file. Threads may share it."""

    def __init__(self, path: Path, *, has_identities: bool) -> None:
        """Read the file. Raises ConfigurationError if it cannot be used.

        Also for quotas without identities, which could not be told apart.
        """
        self._path = path
        self._has_identities = has_identities
        self._rules = self._load()
        _all_files.add(self)

    def rules(self) -> QuotaRules:
        """Return the rules as they were read last."""
        return self._rules

    def reload(self) -> list[Change]:
        """Read the file again; return what changed.

        Raises ConfigurationError; the former rules stay then.
        """
        former, self._rules = self._rules, self._load()
        return _changes(former, self._rules)

    def _load(self) -> QuotaRules:
        try:
            content = tomllib.loads(read_regular(self._path, limits.SMALL_FILE_BYTES_MAX).decode())
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}") from error
        except (RecursionError, ValueError) as error:
            raise ConfigurationError(f"{self._path} is not TOML: {error}") from error
        section = content.get("quotas", {})
        if not isinstance(section, dict):
            raise ConfigurationError(f"{self._path}: quotas is a section: write [quotas]")
        try:
            rules = rules_of(section)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error
        if rules.has_any and not self._has_identities:
            raise ConfigurationError(
                f"{self._path}: [quotas] needs identities, as all clients of a machine would count"
                " as one otherwise: name administrators in [auth] (--auth-admin), or remove the"
                " quotas"
            )
        return rules


def maybe_quota_file(settings: ListenerSettings) -> QuotaFile | None:
    """Return the quotas of a server. Raises ConfigurationError if they cannot be used."""
    if settings.quotas_file is None:
        return None
    return QuotaFile(settings.quotas_file, has_identities=bool(settings.auth_admins))


_all_files: Final[WeakSet[QuotaFile]] = WeakSet()


def current() -> QuotaRules:
    """Return the rules that hold in this process, whose servers have the same file."""
    return next((each.rules() for each in list(_all_files)), NO_RULES)


def reload_all() -> bool | None:
    """Read all files of this process again; return whether they can be used, None without any.

    Each change is logged, and each reason why they cannot be used, once: several servers may have
    the same file.
    """
    found, faults, changes = list(_all_files), set[str](), set[Change]()
    for each in found:
        try:
            changes.update(each.reload())
        except ConfigurationError as error:
            faults.add(str(error))
    for change in sorted(changes):
        _LOG.info("quota changed identity=%s key=%s former=%d value=%d", *change)
    for fault in sorted(faults):
        _LOG.warning("quotas refused, the former ones stay: %s", fault)
    return not faults if found else None
