"""Rules of the code that a reviewer need not repeat."""

import ast
from collections import Counter
from pathlib import Path

from tidy_sources import PACKAGES, ROOT, names_used, parse, project_files, python_files, statements

from sbp_core.cli.logs import RESERVED_KEYS, maybe_template

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

UNSAFE = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "eval", "exec", "os.system"}
"""Each runs what it reads: none of them goes near bytes of a peer or a disk."""

IMPURE = {"time", "random", "socket", "open", "os.open"}
"""Clock, chance, network and files enter the servers and the log by ports that tests replace."""
PORTS = {Path("sbp_core/log/disk.py"), Path("sbp_core/pd/metadata/data_dir.py")}

MAY_PRINT = ("sbp_core/cli", "sbp_spark/operations/java_homes.py")


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
    paths = [path for path in python_files("tests") if path.name.startswith("test_")]
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


def log_calls(tree: ast.Module) -> list[tuple[int, str | None]]:
    """Line and message of each log call; None for a message that is no constant."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_LOG"), attr=attr), args=args):
                message = args[1 if attr == "log" else 0]
                value = message.value if isinstance(message, ast.Constant) else None
                found.append((node.lineno, value))
    return found


def is_event(message: str | None) -> bool:
    """Whether a message is `EVENT key=%s: DETAIL`, as `sbp_core.cli.logs` reads it."""
    template = None if message is None else maybe_template(message)
    if template is None or set(template.keys) & set(RESERVED_KEYS):
        return False
    return "=%" not in (template.detail or "")


def test_log_calls_of_servers_are_events():
    """The client is a library: its lines are read among those of Spark."""
    servers = [path for path in python_files("sbp_core") if "client" not in path.parts]
    calls = [(path, *each) for path in servers for each in log_calls(parse(path))]
    assert len(calls) > 100
    assert [f"{path}:{line}" for path, line, text in calls if not is_event(text)] == []


def test_a_log_call_that_is_no_event_is_found():
    tree = ast.parse('_LOG.info("a b=%s: %s", 1, 2)\n_LOG.log(3, "%s: a", 1)\n_LOG.info(text)')
    assert log_calls(tree) == [(1, "a b=%s: %s"), (2, "%s: a"), (3, None)]
    bad = ["%s: a", "a %s", "a: b=%s", "a server=%d", "a b=%s, c=%s", None]
    assert [text for text in bad if is_event(text)] == []
    assert all(map(is_event, ["a", "a b=%.1f c=%04o", "a: %s"]))


def private_patches(tree: ast.AST) -> list[int]:
    """Lines that replace or delete an attribute whose name begins with an underscore."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"setattr", "delattr"}
        and any(
            isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and each.value.rpartition(".")[2].startswith("_")
            for each in node.args[:2]
        )
    ]


def test_unit_tests_patch_no_private_names():
    """A value that a test varies is an argument: a private name may go at any time."""
    units = python_files("tests/unit")
    assert len(units) > 100
    assert [f"{path}:{line}" for path in units for line in private_patches(parse(path))] == []


def test_a_patch_of_a_private_name_is_found():
    tree = ast.parse(
        'patch.setattr(a, "_b", 1)\npatch.setattr(a, "b", "_c")\npatch.setattr("a.b._c", 1)\n'
        'patch.delattr(a, "_b")\nrename(a, "_b")'
    )
    assert private_patches(tree) == [1, 3, 4]


STARTS_SERVERS = {"ScriptedPeer", "peer", "peers", "runner", "running"}
"""Fixtures, and names of tests.support, that start a server with sockets."""


def servers_started(tree: ast.Module) -> set[str]:
    """Names that start a server, which a module of tests imports or has as a fixture."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.FunctionDef):
            names |= {each.arg for each in node.args.args}
    return names & STARTS_SERVERS


def test_unit_tests_start_no_servers():
    units = python_files("tests/unit")
    assert [path for path in units if servers_started(parse(path))] == []


def test_a_test_that_starts_a_server_is_found():
    tree = ast.parse("from a import running\ndef test_a(peer, x):\n    def peers(): pass")
    assert servers_started(tree) == {"running", "peer"}
