"""From seconds to rates, ratios, a table, a file and a picture."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyspark

_MIB: Final = 1024 * 1024
_FSYNCS: Final = 32
_DISK_WRITE_BYTES: Final = 64 * _MIB


@dataclass(frozen=True, slots=True)
class Rate:
    """A scenario's median rates, of the connector and of its ceiling, and their ratio.

    `payload_*` count octets of values per second. `ratio` is the median over the rounds of
    connector over ceiling, 1.0 is as fast; `ratio_low` and `ratio_high` are its extremes.
    """

    scenario: str
    ceiling: str
    rows_per_s: float
    payload_mb_per_s: float
    ceiling_rows_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    seconds: tuple[float, ...]
    ceiling_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in MiB of one process, or of several together, during a step."""

    step: str
    process: str
    start_mib: float
    peak_mib: float
    end_mib: float


@dataclass(frozen=True, slots=True)
class Latency:
    """How long records took to a reader at the tail, and what others read meanwhile.

    `append_*` is the part of it until the writer had its acknowledgement.
    """

    side: str
    append_p50_ms: float
    append_p99_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    catch_up_mb_per_s: float


def latency(
    side: str,
    *,
    append_seconds: Sequence[float],
    seconds: Sequence[float],
    octets_per_s: Sequence[float],
) -> Latency:
    """Sum up one side: the seconds of each record, and what others read in each round."""
    return Latency(
        side=side,
        append_p50_ms=percentile_ms(append_seconds, 50),
        append_p99_ms=percentile_ms(append_seconds, 99),
        p50_ms=percentile_ms(seconds, 50),
        p99_ms=percentile_ms(seconds, 99),
        max_ms=max(seconds) * 1000,
        catch_up_mb_per_s=median(octets_per_s) / 1e6,
    )


def percentile_ms(seconds: Sequence[float], percent: int) -> float:
    return sorted(seconds)[len(seconds) * percent // 100] * 1000


@dataclass(frozen=True, slots=True)
class HeaderCost:
    """Processor time that it takes to encode a header with so many items, and to decode it."""

    header: str
    items: int
    octets: int
    encode_us: float
    decode_us: float


def rate(
    scenario: str,
    ceiling: str,
    *,
    rows: int,
    payload_bytes: int,
    seconds: Sequence[float],
    ceiling_seconds: Sequence[float],
) -> Rate:
    """Sum up the rounds of a scenario: `seconds[i]` and `ceiling_seconds[i]` ran back to back."""
    typical = median(seconds)
    pairs = zip(seconds, ceiling_seconds, strict=True)
    ratios = [ceiling_time / own_time for own_time, ceiling_time in pairs]
    return Rate(
        scenario=scenario,
        ceiling=ceiling,
        rows_per_s=rows / typical,
        payload_mb_per_s=payload_bytes / typical / 1e6,
        ceiling_rows_per_s=rows / median(ceiling_seconds),
        ratio=median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        seconds=tuple(seconds),
        ceiling_seconds=tuple(ceiling_seconds),
    )


def rate_table(rates: Sequence[Rate]) -> str:
    """Return the rates as a table for the terminal."""
    header = ("scenario", "rows/s", "MB/s", "ceiling", "its rows/s", "ratio", "spread")
    lines = [
        (
            each.scenario,
            f"{each.rows_per_s:,.0f}",
            f"{each.payload_mb_per_s:,.0f}",
            each.ceiling,
            f"{each.ceiling_rows_per_s:,.0f}",
            f"{each.ratio:.2f}",
            f"{each.ratio_low:.2f} to {each.ratio_high:.2f}",
        )
        for each in rates
    ]
    return table(header, lines, text_columns={0, 3})


def memory_table(memories: Sequence[Memory]) -> str:
    """Return resident memory as a table for the terminal."""
    header = ("step", "resident memory of", "start MiB", "peak MiB", "growth MiB", "end MiB")
    lines = [
        (
            each.step,
            each.process,
            f"{each.start_mib:,.0f}",
            f"{each.peak_mib:,.0f}",
            f"{each.peak_mib - each.start_mib:,.0f}",
            f"{each.end_mib:,.0f}",
        )
        for each in memories
    ]
    return table(header, lines, text_columns={0, 1})


def latency_table(latencies: Sequence[Latency]) -> str:
    """Return latencies as a table for the terminal."""
    header = (
        "reads are served",
        "append p50 ms",
        "append p99 ms",
        "p50 ms",
        "p99 ms",
        "max ms",
        "catch-up MB/s",
    )
    lines = [
        (
            each.side,
            f"{each.append_p50_ms:.1f}",
            f"{each.append_p99_ms:.1f}",
            f"{each.p50_ms:.1f}",
            f"{each.p99_ms:.1f}",
            f"{each.max_ms:.1f}",
            f"{each.catch_up_mb_per_s:,.0f}",
        )
        for each in latencies
    ]
    return table(header, lines, text_columns={0})


def header_table(costs: Sequence[HeaderCost]) -> str:
    """Return the costs of headers as a table for the terminal."""
    header = ("header", "items", "octets", "encode us", "decode us", "both us")
    lines = [
        (
            each.header,
            f"{each.items:,}",
            f"{each.octets:,}",
            f"{each.encode_us:,.0f}",
            f"{each.decode_us:,.0f}",
            f"{each.encode_us + each.decode_us:,.0f}",
        )
        for each in costs
    ]
    return table(header, lines, text_columns={0})


def table(
    header: tuple[str, ...], lines: Sequence[tuple[str, ...]], *, text_columns: set[int]
) -> str:
    """Return a table for the terminal: columns as wide as their longest cell, numbers right."""
    cells = [header, *lines]
    widths = [max(len(line[index]) for line in cells) for index in range(len(header))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, rule, *lines)
    )


def environment(folder: Path) -> dict[str, Any]:
    """Return what the figures depend on; the disk is the one below `folder`."""
    fsync_ms, disk_mb_per_s = _disk(folder / "disk-probe")
    return {
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "spark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "disk_fsync_ms": round(fsync_ms, 3),
        "disk_write_mb_per_s": round(disk_mb_per_s),
    }


def _disk(probe: Path) -> tuple[float, float]:
    """Return the median ms of a 4 KiB write with fdatasync, and the MB/s of a large one."""
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        syncs = [_write_seconds(descriptor, bytes(4096)) for _ in range(_FSYNCS)]
        seconds = _write_seconds(descriptor, os.urandom(_MIB), times=_DISK_WRITE_BYTES // _MIB)
    finally:
        os.close(descriptor)
        probe.unlink()
    return median(syncs) * 1000, _DISK_WRITE_BYTES / seconds / 1e6


def _write_seconds(descriptor: int, data: bytes, *, times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        os.write(descriptor, data)
    os.fdatasync(descriptor)
    return time.perf_counter() - started


def write_json(
    path: Path,
    *,
    settings: dict[str, Any],
    surroundings: dict[str, Any],
    rates: Sequence[Rate],
    peer: Sequence[dict[str, Any]],
    typed: Sequence[dict[str, Any]],
    delays: Sequence[dict[str, Any]],
    memories: Sequence[Memory],
    headers: Sequence[HeaderCost],
) -> None:
    """Write all that was measured, and where, as JSON."""
    content = {
        "settings": settings,
        "environment": surroundings,
        "rates": [asdict(each) for each in rates],
        "peer": [*peer],
        "typed": [*typed],
        "delays": [*delays],
        "memory": [asdict(each) for each in memories],
        "headers": [asdict(each) for each in headers],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def maybe_draw(path: Path, rates: Sequence[Rate], *, title: str) -> Path | None:
    """Draw the ratios as bars into a PNG; None without matplotlib or without rates."""
    if not rates:
        return None
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
        return None
    ordered = list(reversed(rates))
    figure = Figure(figsize=(8, 1.4 + 0.7 * len(ordered)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    spread = [
        [each.ratio - each.ratio_low for each in ordered],
        [each.ratio_high - each.ratio for each in ordered],
    ]
    names = [each.scenario for each in ordered]
    axes.barh(names, [each.ratio for each in ordered], xerr=spread, color="#2a7f9e", capsize=4)
    for index, each in enumerate(ordered):
        label = f"{each.ratio:.0%}   {each.rows_per_s / 1e6:.2f} M rows/s"
        axes.text(each.ratio_high + 0.02, index, label, va="center", backgroundcolor="white")
    axes.axvline(1.0, color="#444444", linestyle="--", linewidth=1)
    axes.set_xlim(0, max(1.1, max(each.ratio_high for each in ordered) + 0.35))
    axes.set_xlabel("share of Spark's own ceiling for a Python source or sink (dashed: 1.0)")
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path
