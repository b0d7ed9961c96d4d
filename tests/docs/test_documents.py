"""The code of the documents runs: every block, in order, as a reader pastes it.

Sybil finds the blocks and their HTML comments. One test is one document, since its blocks build on
each other, and since pytest then gives it the Spark session of the other tests. The documents share
one server, in the order of the start page, as for a reader who tries one page after the other.
Those that stop the server have one of their own. Two things of a block are replaced: the default
endpoint and the folder /tmp/sbp-demo.

A block that cannot run here has a comment before it with the reason:

    <!-- skip: next "needs a second terminal" -->

A comment `<!-- invisible-code: python` runs, too: it prepares or checks what readers need not see.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import SkipTest

import pytest
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from sbp_core.cluster import LocalCluster
from sbp_core.processes import CLUSTER_PORTS

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
SHELL_SECONDS = 120


def run_python(example: Example) -> None:
    line = example.line + example.parsed.line_offset
    source = "\n" * line + replaced(example)
    exec(compile(source, example.path, "exec", dont_inherit=True), example.namespace)


def run_shell(example: Example) -> None:
    """Run a block in a shell of its own; a later block finds what it printed in `output`."""
    cluster, folder = example.namespace["cluster"], example.namespace["folder"]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", replaced(example)],
        cwd=folder,
        env={
            **os.environ,
            "SBP_ENDPOINT": cluster.endpoint,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SHELL_SECONDS,
        check=False,
    )
    print(done.stdout)
    example.namespace["output"] = done.stdout
    where = f"{example.path}:{example.line}"
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}"


def run_sql(example: Example) -> None:
    for statement in filter(str.strip, replaced(example).split(";")):
        example.namespace["spark"].sql(statement).show()


def replaced(example: Example) -> str:
    text = example.parsed.replace("127.0.0.1:12378", example.namespace["cluster"].endpoint)
    return text.replace("/tmp/sbp-demo", str(example.namespace["folder"]))


SYBIL = Sybil(
    parsers=[
        SkipParser(),
        CodeBlockParser("python", run_python),
        CodeBlockParser("sh", run_shell),
        CodeBlockParser("sql", run_sql),
    ]
)


def parsed(path: Path) -> Document:
    return SYBIL.parse(path)


def run(document: Document) -> None:
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as reason:
            print(f"{document.path}:{example.line} does not run: {reason}")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sbp-demo")


@pytest.fixture(scope="module")
def shared_cluster(shared_folder):
    with LocalCluster(shared_folder / "data") as cluster:
        yield cluster


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if [*parsed(path).examples()]], ids=name
)
def test_the_code_of_a_document_runs(path, spark, tmp_path, shared_folder, shared_cluster):
    document = parsed(path)
    with contextlib.ExitStack() as stack:
        folder, cluster = shared_folder, shared_cluster
        if "cluster.stop" in document.text:
            folder = tmp_path
            cluster = stack.enter_context(LocalCluster(folder / "data"))
        document.namespace |= {"cluster": cluster, "folder": folder, "spark": spark}
        try:
            run(document)
        finally:
            for query in spark.streams.active:
                query.stop()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_code_is_passed_over_without_a_reason(path):
    text = path.read_text(encoding="utf-8")
    # A directive of the site, such as {toctree}, is no code.
    languages = set(re.findall(r"^```([^\n]*)\n.*?^```$", text, re.MULTILINE | re.DOTALL))
    assert {each for each in languages if each[:1] != "{"} <= LANGUAGES | NOT_CODE
    skips = re.findall(r"^<!-- *skip.*$", text, re.MULTILINE)
    assert [
        line for line in skips if not re.fullmatch(r'<!-- skip: next "needs .+" -->', line)
    ] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_port_of_a_document_may_be_taken_by_a_cluster_of_another_test(path):
    numbers = re.findall(r"(?:port |:)(\d{4,5})\b", path.read_text(encoding="utf-8"))
    assert [each for each in numbers if int(each) in CLUSTER_PORTS] == []


def test_code_that_fails_is_found(tmp_path):
    for language, code in (("python", "one = 1\nassert one == 2"), ("sh", "true\nfalse\ntrue")):
        page = tmp_path / "page.md"
        page.write_text(f"Words.\n\n```{language}\n{code}\n```\n")
        document = parsed(page)
        document.namespace |= {"cluster": SimpleNamespace(endpoint="nowhere"), "folder": tmp_path}
        with pytest.raises(AssertionError):
            run(document)
