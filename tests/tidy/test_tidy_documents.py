"""Rules of names and documents that a reviewer need not repeat."""

import ast
import inspect
import re
from pathlib import Path

from tidy_sources import PACKAGES, ROOT, parse, project_files, python_files

from sbp_core import errors

MACHINE = re.compile(
    r"(?<![\w.~$}{-])/(?:home|Users|root|work|mnt|opt)/[\w.-]+|"  # a personal folder
    r"index[-_]url|trusted[-_]host|artifactor[y]|jfro[g]|\w\.interna[l]\b",  # a private registry
    re.IGNORECASE,
)

ARCHITECTURE = Path("docs/explanation/architecture.md")
DECISIONS = Path("docs/explanation/decisions")


def documents() -> list[Path]:
    """Every Markdown file of the project."""
    return [path for path in project_files() if path.suffix == ".md"]


def decisions() -> list[Path]:
    """The pages of docs/explanation/decisions, without their list."""
    return [path for path in documents() if path.parent == DECISIONS and path.name != "README.md"]


def prose(path: Path) -> str:
    """A document without its blocks of code, in which nothing is a link or a heading."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def leads_somewhere(path: Path, target: str) -> bool:
    """Whether a relative link in a document leads to a file, and to a heading that it has."""
    name, _, anchor = target.partition("#")
    to = path.parent / name if name else path
    if not (ROOT / to).exists():
        return False
    if not anchor:
        return True
    headings = re.findall(r"^#+ (.+)$", prose(to), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return anchor in slugs


def test_nothing_names_somebodys_machine():
    found = []
    for path in project_files():
        text = (ROOT / path).read_bytes().decode("utf-8", errors="ignore")
        found += [f"{path}: {match[0]}" for match in MACHINE.finditer(text)]
    assert found == []


def test_the_machine_pattern_matches_what_it_is_for():
    folder = Path("/", "home", "someone")
    assert MACHINE.search(f"open('{folder}/x')")
    assert MACHINE.search("pip --index" + "-url=http://somewhere")
    assert not MACHINE.search("GET https://example.org/work/x or ~/work/x")


def test_modules_and_what_they_offer_have_docstrings():
    offered = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bare = []
    for path in python_files(*PACKAGES):
        tree = parse(path)
        bare += [str(path)] if not ast.get_docstring(tree) else []
        bare += [
            f"{path}: {node.name}"
            for node in tree.body
            if isinstance(node, offered)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
    assert bare == []


def test_the_drawn_exception_tree_is_the_real_one():
    drawn, above = set(), {}
    for match in re.finditer(r"^((?:\|   |    |\+-- )*)(\w+Error)\b", errors.__doc__, re.MULTILINE):
        depth, name = len(match[1]) // 4, match[2]
        above[depth] = name
        drawn.add((name, above.get(depth - 1)))
    real = {
        (error.__name__, None if error is errors.SbpError else error.__bases__[0].__name__)
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.SbpError)
    }
    assert drawn == real


def test_links_lead_somewhere():
    links = [
        (path, target)
        for path in documents()
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(path))
        if "://" not in target
    ]
    assert len(links) > 40
    assert [link for link in links if not leads_somewhere(*link)] == []


def test_a_link_to_nothing_is_found():
    assert leads_somewhere(ARCHITECTURE, "guarantees.md#reading")
    assert leads_somewhere(ARCHITECTURE, "#layers")
    assert not leads_somewhere(ARCHITECTURE, "guarantees.md#no-such-heading")
    assert not leads_somewhere(ARCHITECTURE, "NOTHING.md")


def test_the_architecture_is_read_in_one_sitting():
    assert len((ROOT / ARCHITECTURE).read_text(encoding="utf-8").splitlines()) <= 200


def test_the_folders_that_are_named_exist():
    pages = [ARCHITECTURE, *decisions()]
    found = []
    for path in pages:
        text = prose(path)
        named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", text)
        for line in re.findall(r"^Date: .* Code: (.*)\.$", text, re.MULTILINE):
            named += re.findall(r"`([^`]+)`", line)
        assert named, f"{path} names no folder"
        found += [
            f"{path}: {name}"
            for name in named
            if not any((ROOT / base / name).exists() for base in ("", "sbp_core"))
        ]
    assert found == []


def test_a_decision_is_dated_short_and_listed():
    listed = re.findall(
        r"^- \[(.+)\]\((.+\.md)\), ([\d-]+)$", prose(DECISIONS / "README.md"), re.MULTILINE
    )
    assert sorted(name for _, name, _ in listed) == [path.name for path in decisions()]
    for title, name, date in listed:
        lines = (ROOT / DECISIONS / name).read_text(encoding="utf-8").splitlines()
        assert lines[0] == f"# {title}"
        assert name.startswith(date)
        assert lines[2].startswith(f"Date: {date}. Code: ")
        assert [line for line in lines if line.startswith("## ")] == [
            "## Context",
            "## Decision",
            "## Consequences",
        ]
        assert len(lines) <= 60, name


def test_the_changelog_has_a_section():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[?(?:Unreleased|\d+\.\d+\.\d+)", text, re.MULTILINE | re.IGNORECASE)


def test_ci_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"^<!-- CI runs this block.*-->\n```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL
    )
    assert re.findall(r"^make \w+", block, re.MULTILINE) == ["make demo", "make test"]


def test_the_readme_is_read_in_two_minutes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    assert len(readme.split()) <= 900


def test_docstrings_cite_sections_of_the_protocol() -> None:
    protocol = (ROOT / "docs/reference/protocol.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#+ (.*)$", protocol, re.MULTILINE))
    for path in python_files(*PACKAGES):
        cited = set(re.findall(r'SPEC "([^"]+)"', (ROOT / path).read_text(encoding="utf-8")))
        assert cited <= sections, f"{path} cites {cited - sections}"
