"""The project's own files, as the tidy tests look at them."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("sbp_core", "sbp_spark", "pyspark_sbp")


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is in the repository or about to be, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = {Path(name) for name in listed.stdout.split("\0") if name}
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def python_files(*folders: str) -> list[Path]:
    """Python files that people write: all of them, or those in `folders`."""
    return [
        path
        for path in project_files()
        if path.suffix == ".py"
        and path.stem != "_generated"
        and (not folders or any(path.is_relative_to(folder) for folder in folders))
    ]


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below a node, without a look into expressions: most nodes are these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from statements(child)


def names_used(tree: ast.AST) -> set[tuple[str, int]]:
    """Dotted names that are imported or called, with their lines: `pickle`, `os.system`, `open`."""
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            used |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            used |= {(f"{node.module}.{alias.name}", node.lineno) for alias in node.names}
        elif isinstance(node, ast.Call):
            used.add((ast.unparse(node.func), node.lineno))
    return used
