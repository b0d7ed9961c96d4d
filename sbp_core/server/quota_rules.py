"""The rules of quotas: the section [quotas] of a file, which is read again at SIGHUP.

A key of the section holds for each identity; a table in it, [quotas.SUBJECT], for one.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from sbp_core import limits
from sbp_core.access.identity import parse_subject
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import read_regular
from sbp_core.server.settings import ListenerSettings, integer_setting

_LOG: Final = logging.getLogger(__name__)

_PER_SECOND_MAX: Final = 2**40


def _rate(doc: str, unit: str) -> Any:
    return integer_setting(doc, 0, _PER_SECOND_MAX, default=0, unit=f"{unit} per second")


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that one identity may ask of a server; 0 is without limit."""

    bytes_in_per_s: int = _rate(
        "Bytes of requests, such as appends, that each identity may send to a server, on all of its"
        " connections together; 0 is without limit, here and below. Quotas need identities. A"
        ' section such as [quotas."CN=etl,O=Acme"] is for one subject, with the keys that differ.',
        "bytes",
    )
    bytes_out_per_s: int = _rate(
        "Bytes of answers, such as fetched batches.",
        "bytes",
    )
    requests_per_s: int = _rate("Requests, whatever their size.", "requests")
    connections: int = integer_setting(
        "Connections that each identity may have; more are refused.",
        0,
        limits.CONNECTIONS_MAX,
        default=0,
        unit="connections",
    )
    memory_bytes: int = integer_setting(
        "Memory of the requests of an identity that are being served; beyond it nothing more is"
        " read from its connections.",
        0,
        _PER_SECOND_MAX,
        default=0,
        unit="bytes",
    )


KEYS: Final = {each.name: each for each in fields(Quota)}
"""The keys of the section, with their documentation."""
_UNBOUNDED: Final = Quota()


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """The quotas of all identities: `default`, and `by_subject` for subjects with their own."""

    default: Quota = _UNBOUNDED
    by_subject: Mapping[str, Quota] = field(default_factory=dict)
    has_any: bool = False
    """Whether anything is bounded."""

    def of(self, subject: str) -> Quota:
        """Return the quota of an identity."""
        return self.by_subject.get(subject, self.default)

    def shown(self) -> dict[str, object]:
        """Return all keys of the default, and of each subject with its own, as JSON has them."""
        by_subject = {subject: asdict(quota) for subject, quota in self.by_subject.items()}
        return {"default": asdict(self.default), "by_subject": by_subject}


NO_RULES: Final = QuotaRules()


def rules_of(section: Mapping[str, Any]) -> QuotaRules:
    """Return the rules in a section [quotas]. Raises ConfigurationError with all that is wrong."""
    faults: list[str] = []
    default = _read(
        {name: each for name, each in section.items() if not isinstance(each, dict)},
        "[quotas]",
        _UNBOUNDED,
        faults,
    )
    by_subject = {
        _subject(name, faults): _read(each, f'[quotas."{name}"]', default, faults)
        for name, each in section.items()
        if isinstance(each, dict)
    }
    if faults:
        raise ConfigurationError("; ".join(faults))
    has_any = any(each != _UNBOUNDED for each in (default, *by_subject.values()))
    return QuotaRules(default, by_subject, has_any)


def _subject(name: str, faults: list[str]) -> str:
    """Return a subject in the form in which it is compared; add to `faults` if it is invalid."""
    try:
        return parse_subject(name)
    except ValueError as error:
        faults.append(f"{name[:64]!a} in [quotas] is not a subject: {error}")
        return name


def _read(keys: Mapping[str, object], where: str, base: Quota, faults: list[str]) -> Quota:
    """Return `base` with other values; add to `faults` what is wrong with them."""
    values = {}
    for key, value in keys.items():
        if key not in KEYS:
            faults.append(f"unknown key {key[:64]!r} in {where} (known: {', '.join(KEYS)})")
            continue
        low, high = KEYS[key].metadata["bounds"]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            faults.append(f"{key} in {where}: expected an integer in {low}..{high}, got {value!r}")
            continue
        values[key] = value
    return replace(base, **values)


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
