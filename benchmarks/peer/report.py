"""The connector beside a peer: figures, or the word that there was no peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from benchmarks.report import percentile_ms, table


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median rates of the connector and of its peer; MB/s count octets of values.

    `ratio` is the median over the rounds of connector over peer: below 1.0 the peer is faster.
    `ratio_low` and `ratio_high` are its extremes.
    """

    scenario: str
    peer: str
    rows_per_s: float
    payload_mb_per_s: float
    peer_rows_per_s: float
    peer_payload_mb_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    seconds: tuple[float, ...]
    peer_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long records took through the connector and through its peer, over all rounds.

    `ratio` is the median over the rounds of the peer's median over the connector's: below 1.0 the
    peer is faster. `ratio_low` and `ratio_high` are its extremes.
    """

    scenario: str
    peer: str
    p50_ms: float
    p99_ms: float
    peer_p50_ms: float
    peer_p99_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True, slots=True)
class Absent:
    """A scenario that was not measured, because there was no peer; `absent` tells why."""

    scenario: str
    peer: str
    absent: str


Finding = Comparison | Waits | Absent


def compare(
    scenario: str,
    peer: str,
    *,
    rows: int,
    payload_bytes: int,
    seconds: Sequence[float],
    peer_seconds: Sequence[float],
) -> Comparison:
    """Sum up a scenario: `seconds[i]` and `peer_seconds[i]` were measured back to back."""
    ratios = [theirs / ours for ours, theirs in zip(seconds, peer_seconds, strict=True)]
    return Comparison(
        scenario=scenario,
        peer=peer,
        rows_per_s=rows / median(seconds),
        payload_mb_per_s=payload_bytes / median(seconds) / 1e6,
        peer_rows_per_s=rows / median(peer_seconds),
        peer_payload_mb_per_s=payload_bytes / median(peer_seconds) / 1e6,
        ratio=median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        seconds=tuple(seconds),
        peer_seconds=tuple(peer_seconds),
    )


def compare_waits(
    scenario: str,
    peer: str,
    seconds: Sequence[Sequence[float]],
    peer_seconds: Sequence[Sequence[float]],
) -> Waits:
    """Sum up records: those of `seconds[i]` and `peer_seconds[i]` were sent back to back."""
    ratios = [
        median(theirs) / median(ours) for ours, theirs in zip(seconds, peer_seconds, strict=True)
    ]
    ours, theirs = ([*chain.from_iterable(rounds)] for rounds in (seconds, peer_seconds))
    return Waits(
        scenario=scenario,
        peer=peer,
        p50_ms=percentile_ms(ours, 50),
        p99_ms=percentile_ms(ours, 99),
        peer_p50_ms=percentile_ms(theirs, 50),
        peer_p99_ms=percentile_ms(theirs, 99),
        ratio=median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )


def tables(found: Sequence[Finding]) -> str:
    """Return what was found as tables for the terminal, and why there is no peer if so."""
    rates = [each for each in found if isinstance(each, Comparison)]
    waits = [each for each in found if isinstance(each, Waits)]
    absences = [each for each in found if isinstance(each, Absent)]
    parts = [
        _rate_table(rates) if rates else "",
        _wait_table(waits) if waits else "",
        "\n".join(f"{each.scenario}: {each.peer} is absent: {each.absent}" for each in absences),
    ]
    return "\n\n".join(filter(None, parts))


def _rate_table(rates: Sequence[Comparison]) -> str:
    header = ("scenario", "rows/s", "MB/s", "peer", "its rows/s", "its MB/s", "ratio", "spread")
    lines = [
        (
            each.scenario,
            f"{each.rows_per_s:,.0f}",
            f"{each.payload_mb_per_s:,.0f}",
            each.peer,
            f"{each.peer_rows_per_s:,.0f}",
            f"{each.peer_payload_mb_per_s:,.0f}",
            f"{each.ratio:.2f}",
            f"{each.ratio_low:.2f} to {each.ratio_high:.2f}",
        )
        for each in rates
    ]
    return table(header, lines, text_columns={0, 3})


def _wait_table(waits: Sequence[Waits]) -> str:
    header = ("scenario", "p50 ms", "p99 ms", "peer", "its p50", "its p99", "ratio", "spread")
    lines = [
        (
            each.scenario,
            f"{each.p50_ms:,.0f}",
            f"{each.p99_ms:,.0f}",
            each.peer,
            f"{each.peer_p50_ms:,.0f}",
            f"{each.peer_p99_ms:,.0f}",
            f"{each.ratio:.2f}",
            f"{each.ratio_low:.2f} to {each.ratio_high:.2f}",
        )
        for each in waits
    ]
    return table(header, lines, text_columns={0, 3})
