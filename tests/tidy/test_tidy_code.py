"""Rules of the code that a reviewer need not repeat."""

import ast
from collections import Counter
from pathlib import Path

from tidy_sources import PACKAGES, ROOT, names_used, parse, project_files, python_files, statements

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

UNSAFE = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "eval", "exec", "os.system"}
"""Each runs what it reads: none of them goes near bytes of a peer or a disk."""

IMPURE = {"time", "random", "socket", "open", "os.open"}
"""Clock, chance, network and files enter the servers and the log by ports that tests replace."""
PORTS = {Path("sbp_core/log/disk.py"), Path("sbp_core/pd/metadata/data_dir.py")}

MAY_PRINT = ("sbp_core/cli", "sbp_spark/java.py")


def find(paths: list[Path], forbidden: set[str]) -> list[str]:
    """Places that import or call a forbidden name, or something below it."""
    return [
        f"{path}:{line}: {name}"
        for path in paths
        for name, line in sorted(names_used(parse(path)))
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    ]


def test_there_is_something_to_look_at():
    assert len(python_files(*PACKAGES)) > 20
    assert Path("pyproject.toml") in project_files()


def test_the_search_finds_imports_and_calls():
    tree = ast.parse("import pickle\nfrom os import system\nos.system('x')\ntime.time()\nopen(f)")
    names = {name for name, _ in names_used(tree)}
    assert names == {"pickle", "os.system", "time.time", "open"}


def test_files_are_short():
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in python_files()}
    assert [path for path, text in texts.items() if text.count("\n") > FILE_LINES_MAX] == []


def test_modules_of_tests_have_names_of_their_own():
    """Pytest imports them without their folders, and finds only one of two with the same name."""
    paths = [path for path in python_files("tests") if path.name != "conftest.py"]
    counts = Counter(path.name for path in paths)
    assert [path for path in paths if counts[path.name] > 1] == []


def test_functions_are_short():
    long = [
        f"{path}:{node.lineno}: {node.name}"
        for path in python_files()
        for node in statements(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_nothing_runs_what_it_reads():
    assert find(python_files(*PACKAGES), UNSAFE) == []


def test_only_the_command_prints():
    quiet = [path for path in python_files(*PACKAGES) if not str(path).startswith(MAY_PRINT)]
    assert find(quiet, {"print"}) == []


def test_servers_and_log_touch_the_world_through_ports():
    inner = ("sbp_core/pd", "sbp_core/rangeserver", "sbp_core/log")
    pure = [path for path in python_files(*inner) if path not in PORTS]
    assert find(pure, IMPURE) == []
