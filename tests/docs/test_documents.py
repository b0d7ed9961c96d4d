"""The code of the documents runs: every block, in order, as a reader pastes it.

One test is one page, since its blocks build on each other. The pages are done in the order of the
start page, with one cluster and one Spark session, as by a reader who tries one after the other.
`make test-all PART=pages` does each of them alone and twice, in a process of its own.

A block that cannot run here has a comment before it with the reason:

    <!-- skip: next "needs a second terminal" -->

No other comment does anything: what a page needs, its readers see.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser

from sbp_core.client import Client
from sbp_core.cluster import LocalCluster
from sbp_core.processes import CLUSTER_PORTS
from tests.docs import reading

ROOT = Path(__file__).parents[2]
LISTED = re.findall(r"^[\w/-]+/[\w-]+$", (ROOT / "docs/index.md").read_text("utf-8"), re.MULTILINE)
DOCUMENTS = [
    *dict.fromkeys(
        [
            ROOT / "README.md",
            *(ROOT / "docs" / f"{each}.md" for each in LISTED),
            *sorted(ROOT.glob("docs/**/*.md")),
            ROOT / "CONTRIBUTING.md",
        ]
    )
]
LANGUAGES = {"python", "sh", "sql"}
NOT_CODE = {"", "text", "mermaid", "json", "yaml", "toml"}
"""Drawings, formats and output. Code in any other language would be code that nothing runs."""
COMMENTS = (
    r'skip: next "needs .+"',
    r"Made by `python docs/generate\.py` .+",
    r"The end of [\w.]+\.",
    r"CI runs this block .+",
)
PAGE_SECONDS = 500


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def has_code(path: Path) -> bool:
    sybil = Sybil(parsers=[CodeBlockParser(each, bool) for each in LANGUAGES])
    return any(sybil.parse(path).examples())


PAGES = [path for path in DOCUMENTS if has_code(path)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sbp-demo")


@pytest.fixture(scope="module")
def served(folder):
    with LocalCluster(folder / "data") as cluster:
        yield cluster


@pytest.fixture
def others(served):
    """Fail if a page changes streams of the pages before it."""

    def held(client):
        infos = client.list_streams()
        bounds = client.stream_bounds([info.stream_id for info in infos])
        return {info.name: each for info, each in zip(infos, bounds, strict=True)}

    with Client(served.endpoint) as client:
        before = held(client)
        yield
        assert held(client).items() >= before.items()


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_a_page_runs_after_those_before_it(path, spark, folder, served, others):
    try:
        reading.Reader(folder, served.endpoint).read(path)
    finally:
        for query in spark.streams.active:
            query.stop()


@pytest.mark.pages
@pytest.mark.parametrize("path", PAGES, ids=name)
def test_a_page_runs_alone_and_twice(path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.docs.reading", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_code_is_passed_over_without_a_reason_or_hidden(path):
    text = path.read_text(encoding="utf-8")
    # A directive of the site, such as {toctree}, is no code.
    languages = set(re.findall(r"^```([^\n]*)\n.*?^```$", text, re.MULTILINE | re.DOTALL))
    assert {each for each in languages if each[:1] != "{"} <= LANGUAGES | NOT_CODE
    comments = re.findall(r"^ *<!-- *(.*?) *-->", text, re.MULTILINE | re.DOTALL)
    assert [each for each in comments if not re.fullmatch("|".join(COMMENTS), each)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_port_of_a_document_may_be_taken_by_a_cluster_of_another_test(path):
    numbers = re.findall(r"(?:port |:)(\d{4,5})\b", path.read_text(encoding="utf-8"))
    assert [each for each in numbers if int(each) in CLUSTER_PORTS] == []


@pytest.mark.parametrize(
    ("language", "code"), [("python", "one = 1\nassert one == 2"), ("sh", "true\nfalse\ntrue")]
)
def test_code_that_fails_is_found(tmp_path, language, code):
    page = tmp_path / "page.md"
    page.write_text(f"Words.\n\n```{language}\n{code}\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        reading.Reader(tmp_path, "nowhere").read(page)


def test_shell_blocks_are_pasted_into_one_terminal(tmp_path):
    blocks = ["word=heard\nsleep 600 &", 'test "$word" = heard\nkill %1']
    page = tmp_path / "page.md"
    page.write_text("".join(f"```sh\n{each}\n```\n\n" for each in blocks), encoding="utf-8")
    reading.Reader(tmp_path, "nowhere").read(page)
