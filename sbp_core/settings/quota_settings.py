"""The quotas of identities: the section [quotas] of a configuration file.

A key of the section holds for each identity; a table in it, [quotas.SUBJECT], for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from sbp_core import limits
from sbp_core.access.identity import parse_subject
from sbp_core.errors import ConfigurationError
from sbp_core.settings.declaration import integer_setting, setting_of

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
    """The quotas of all identities: `default`, and those of subjects that have their own."""

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
    """Return a subject in the form in which it is compared; add to `faults` why it is none."""
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
        try:
            values[key] = setting_of(KEYS[key]).convert(value, f"{key} in {where}")
        except ConfigurationError as error:
            faults.append(str(error))
    return replace(base, **values)
