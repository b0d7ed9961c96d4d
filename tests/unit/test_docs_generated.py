"""The generated pages of docs/reference and conf/server.toml are what the code says."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sbp_core.app
import sbp_core.client
import sbp_core.records
import sbp_spark
from benchmarks import chart
from sbp_core import errors
from sbp_core.errors import StatusCode
from sbp_core.rangeserver.hosted_ranges import RANGE
from sbp_core.session.states import CALL, CONNECTION
from sbp_spark.options.sink import SINK_OPTIONS
from sbp_spark.options.source import SOURCE_OPTIONS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "generate.py"
API = {
    "client": (sbp_core.client, sbp_core.records, sbp_spark),
    "records-client": (sbp_core.app,),
}


@pytest.fixture(scope="module")
def generate():
    sys.path.append(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


def test_the_committed_documents_are_the_generated_ones():
    told = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_status_code_has_a_sender(generate):
    assert set(generate.status_codes.SENT_BY) == set(StatusCode)
    rows = generate.status_codes.errors_document().splitlines()
    for code in StatusCode:
        assert sum(row.startswith(f"| {int(code)} | {code.name} | ") for row in rows) == 1


def test_the_codes_that_our_servers_send_are_those_that_they_use(generate):
    sources = [
        path
        for folder in ("pd", "rangeserver", "server", "session")
        for path in (ROOT / "sbp_core" / folder).rglob("*.py")
    ]
    assert len(sources) > 20
    used = {"NONE", "UNKNOWN", "INVALID_REQUEST"}  # by wire/status.py, as are these two
    used |= {"RS_DATA_CORRUPTED", "RS_INTERNAL"}
    for path in sources:
        source = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"StatusCode\.([A-Z_]+)", source))
        made = re.findall(r"\b(\w+Error)\.of\(", source)
        used |= {StatusCode(getattr(errors, name).codes[0]).name for name in made}
    sent = {
        code.name
        for code, text in generate.status_codes.SENT_BY.items()
        if generate.status_codes.OURS_NEVER not in text
    }
    assert sent == used


@pytest.mark.parametrize("machine", [CONNECTION, CALL, RANGE], ids=lambda machine: machine.name)
def test_diagram_and_table_tell_every_transition_once(generate, machine):
    lines = list(generate.machine_section(machine))
    drawn = {}
    for line in lines:
        if " --> " in line and ": " in line:
            (source, target), labels = line.partition(": ")[0].split(" --> "), line.split(": ")[1]
            drawn |= {(source.strip(), label): target for label in labels.split(", ")}
    expected = {
        (state.name, received.name): target.name
        for state in machine.states
        for received in machine.inputs
        if (target := machine.maybe_next(state, received)) is not None
    }
    assert drawn == expected
    refused = len(machine.states) * len(machine.inputs) - len(expected)
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert cells.count("refused") == refused


@pytest.mark.parametrize("page", API)
def test_every_public_name_is_on_a_page(page):
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^(?:#{3,4} |- `)([\w.]+)", text, re.MULTILINE))
    names = {name for module in API[page] for name in module.__all__}
    for cls in (sbp_core.client.Client, sbp_core.app.Connection, sbp_core.app.Consumer):
        if cls.__name__ in names:
            names |= {
                f"{cls.__name__}.{name}"
                for name in dir(cls)
                if name[0] != "_" and not hasattr(getattr(cls, name), "is_internal")
            }
    assert names - told == set()


def test_a_changed_parameter_changes_the_page(generate):
    def old(first: int, *, then: str = "x") -> bool:
        """Do it."""

    lines = list(generate.api_pages.callable_lines("###", "old", old))
    assert lines == [
        "### old",
        "",
        "    old(first: int, *, then: str = 'x') -> bool",
        "",
        "Do it.",
        "",
    ]


def test_every_option_of_either_side_has_a_row(generate):
    source, sink = generate.options_document().split("## Sink")
    for part, specs in ((source, SOURCE_OPTIONS), (sink, SINK_OPTIONS)):
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert [row.split("`")[1] for row in rows] == [spec.name for spec in specs]
        assert all(row.replace("\\|", "").count("|") == 4 for row in rows)


def test_the_pages_name_only_options_that_exist():
    known = {spec.name for spec in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
    for page, column in (("tune", 1), ("migrate-from-kafka", 2)):
        text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
        parts = [part for part in text.split("\n## ") if part.startswith("Options of ")]
        rows = [line.split("|") for part in parts for line in part.splitlines() if "| `" in line]
        names = {name for row in rows for name in re.findall(r"(?<!= )`(\w+)`", row[column])}
        assert len(names) > 5
        assert names - known <= {"lz4"}


def test_the_chart_of_the_readme_is_drawn_from_the_benchmark_page():
    groups = chart.read_groups(chart.PAGE.read_text(encoding="utf-8"))
    assert [len(group.rates) for group in groups] == [2, 2, 2, 3, 3, 3]
    assert chart.CHART.read_text(encoding="utf-8") == chart.draw(groups)
