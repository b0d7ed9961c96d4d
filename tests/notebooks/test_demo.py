import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.notebooks

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
EVERY = 40
FLIGHTS = -(-336_776 // EVERY)


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(NOTEBOOKS)
    import demo

    return demo


@pytest.fixture
def flights():
    times = ["2013-01-01 12:00", "2013-01-02 12:00", "2013-11-30 12:00", "2013-12-01 03:00"]
    return pd.DataFrame(
        {
            "carrier": ["AA", "AA", "AA", "UA"],
            "dep_delay": pd.array([5, None, -3, 10], dtype="Int64"),
            "time_hour": pd.to_datetime(times, utc=True),
        }
    )


@pytest.fixture
def read():
    """The expected table of a query that read each flight of `flights` once."""
    rows = [
        ("flights.AA", "AA", "2013-01", 2, 1, 5, 0, 1, 2),
        ("flights.AA", "AA", "2013-11", 1, 1, -3, 2, 2, 1),
        ("flights.UA", "UA", "2013-11", 1, 1, 10, 0, 0, 1),  # in December only by UTC
    ]
    names = "stream carrier month flights departed delay first_offset last_offset seen"
    return pd.DataFrame(rows, columns=names.split())


HELD = {"flights.AA": 3, "flights.UA": 1}


def test_records_that_are_read_once_have_no_faults(demo, read, flights):
    assert demo.find_faults(read, flights, HELD) == []


def test_a_record_that_came_twice_in_place_of_another_is_a_fault(demo, read, flights):
    read.loc[0, "seen"] = 1
    (fault,) = demo.find_faults(read, flights, HELD)
    assert fault.startswith("flights.AA: records, distinct offsets,")
    assert fault.endswith("are (3, 2, 0, 2), not (3, 3, 0, 2)")


def test_a_record_that_was_not_read_is_a_fault(demo, read, flights):
    faults = demo.find_faults(read.drop(index=1), flights, HELD)
    assert [fault.partition(":")[0] for fault in faults] == ["flights.AA", "AA 2013-11"]


def test_a_stream_that_was_not_read_is_a_fault(demo, read, flights):
    faults = demo.find_faults(read.drop(index=2), flights, HELD)
    assert [fault.partition(":")[0] for fault in faults] == ["flights.UA", "UA 2013-11"]


def test_a_record_that_is_held_twice_is_a_fault(demo, read, flights):
    faults = demo.find_faults(read, flights, HELD | {"flights.UA": 2})
    assert [fault.partition(":")[0] for fault in faults] == ["flights.UA"]


def test_a_wrong_delay_is_a_fault(demo, read, flights):
    read.loc[1, "delay"] = -4
    assert demo.find_faults(read, flights, HELD) == [
        "AA 2013-11: flights, departures and minutes of delay are (1, 1, -4), not (1, 1, -3)"
    ]


def test_a_record_in_the_stream_of_another_airline_is_a_fault(demo, read, flights):
    read.loc[2, "carrier"] = "AA"
    assert "flights.UA has flights of AA" in demo.find_faults(read, flights, HELD)


def test_faults_make_a_failing_verdict(demo, read, capsys):
    demo.conclude(["flights.AA: wrong"], read, demo.Display())
    printed = capsys.readouterr().out
    assert printed.startswith("FAILED")
    assert "flights.AA: wrong" in printed


def test_the_demo_reads_everything_once_and_leaves_a_picture(tmp_path):
    output = tmp_path / "output"
    options = ["--every", str(EVERY), "--output", str(output)]
    ended = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "demo.py"), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    count = f"{FLIGHTS:,}".replace(",", " ")
    assert f"PASSED: all {count} records were read exactly once" in ended.stdout
    batches = re.findall(r"^   batch +\d+ +([\d ]+) rows read", ended.stdout, re.MULTILINE)
    assert batches[-1] == count
    assert (output / "delays.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in output.iterdir()) == ["delays.png", "spark.log"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output"]


def test_a_wrong_option_is_refused_at_once(tmp_path):
    ended = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "demo.py"), "--every", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "--every is 0; expected 1 to 1000" in ended.stderr
    assert list(tmp_path.iterdir()) == []
