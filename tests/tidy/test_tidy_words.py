"""Words and turns that the project does not use, in code, messages, logs and documents."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
from tidy_sources import PACKAGES, ROOT, parse, project_files, python_files

START = r"(?:\A|[.!?:]\s+|\n\s*\n\s*|\n\s*[-*|#>]+\s+)"
"""The place before a sentence."""

NOT_USED = {
    "byte": r"(?i)octet(?!-stream)",
    "the client, the server, the caller": rf"(?i:\bwhoever\b)|{START}Who [a-z](?![^.]*\?)",
    "again": r"(?i)\banew\b",
    "(leave it out)": r"(?i)\bmeanwhile\b",
    "this many, the same number": r"(?i)\bso many\b",
    "is gone, no longer exists": r"(?i)\b(?:is|are) no more\b(?! than)",
    "(say what is known)": r"(?i)\bas far as is known\b",
    "is down, is unavailable": r"(?i)\b(?:is|are|was|were|be) away\b",
    "is lost permanently": r"(?i)\bgone for good\b",
    "is retried, is replayed, is repeated": r"(?i)\b(?:comes|done) again\b",
    "at accept": r"(?i)\bat the door\b",
    "a sentence that begins with its subject": rf"{START}(?:Of|What) [a-z](?![^.]*\?)",
}
"""By the words to use instead, a pattern of those that are not used."""

PROSE = {".py", ".md", ".toml", ".conf", ".fbs", ".yaml", ".service", ".ipynb"}
HERE = Path("tests/tidy/test_tidy_words.py")


def texts(path: Path) -> list[tuple[int, str]]:
    """Return the prose of a file, each text with its first line: strings and comments of Python."""
    source = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [(1, source)]
    found = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    last_line = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ")
            if token.start[0] == last_line + 1 and token.start[1] == token.line.index("#"):
                first, before = found.pop()
                found.append((first, f"{before}\n{text}"))
            else:
                found.append((token.start[0], text))
            last_line = token.start[0]
    return found


def names(tree: ast.AST) -> set[str]:
    """Return the names of attributes, parameters and variables that a module sets."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


@pytest.fixture(scope="module")
def prose() -> list[tuple[Path, int, str]]:
    """Every text of the project."""
    paths = [path for path in project_files() if path.suffix in PROSE and path != HERE]
    return [(path, line, text) for path in paths for line, text in texts(path)]


@pytest.mark.parametrize("instead", NOT_USED)
def test_words_that_are_not_used(instead, prose):
    found = []
    for path, line, text in prose:
        for match in re.finditer(NOT_USED[instead], text):
            at = line + text.count("\n", 0, match.end() - 1)
            found.append(f"{path}:{at}: {' '.join(match[0].split())}")
    assert found == [], f"use instead: {instead}"


def test_only_functions_may_return_nothing_by_their_name():
    """`maybe_` announces None as a result; a value says so by its type."""
    found = {
        f"{path}: {name}"
        for path in python_files()
        if path.parts[0] in PACKAGES
        for name in names(parse(path))
        if name.lstrip("_").startswith("maybe_")
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("It has 8 octets.", "byte"),
        ("Who comes late waits.", "the client, the server, the caller"),
        ("It waits. Of these one is read.", "a sentence that begins with its subject"),
        ("What a peer sends.", "a sentence that begins with its subject"),
    ],
)
def test_the_patterns_find_what_they_are_for(text, instead):
    assert re.search(NOT_USED[instead], text)


@pytest.mark.parametrize(
    "text", ["What is lost if a disk fails?", "a course of action", "no more than 8"]
)
def test_the_patterns_leave_the_rest_alone(text):
    assert not [instead for instead, pattern in NOT_USED.items() if re.search(pattern, text)]
