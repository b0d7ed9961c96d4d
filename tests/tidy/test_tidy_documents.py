"""What a reviewer would say again and again about words."""

import ast
import inspect
import re
from pathlib import Path

from tidy_sources import PACKAGES, ROOT, parse, project_files, python_files

from sbp_core import errors

MACHINE = re.compile(
    r"(?<![\w.~$}{-])/(?:home|Users|root|work|mnt|opt)/[\w.-]+|"  # somebody's folder
    r"index[-_]url|trusted[-_]host|artifactor[y]|jfro[g]|\w\.interna[l]\b",  # somebody's registry
    re.IGNORECASE,
)


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


def test_the_changelog_has_a_section():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[?(?:Unreleased|\d+\.\d+\.\d+)", text, re.MULTILINE | re.IGNORECASE)


def test_ci_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"^<!-- CI runs this block.*-->\n```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL
    )
    assert re.findall(r"^make \w+", block, re.MULTILINE) == ["make demo", "make test"]
