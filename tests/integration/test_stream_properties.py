"""Properties of streams through a whole cluster: the command, `sbp apply`, backups, races."""

import json

import pytest

from sbp_core.cli.main import main
from tests.support.warm import WarmCluster

FILE = """
[streams.declared]
retention = "7d"

[streams.declared.properties]
owner = "billing"
note = ""

[streams.bare]
"""


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    with WarmCluster(tmp_path_factory.mktemp("properties") / "data") as cluster:
        yield cluster


@pytest.fixture
def sbp(lost, capfd):
    """Runs a command; returns its exit code, and what it wrote or why it failed."""

    def run(*words, cluster=lost):
        exit_code = main([*words, "--endpoint", cluster.endpoint])
        output, errors = capfd.readouterr()
        return exit_code, output or errors

    return run


def described(sbp, name, **options):
    return json.loads(sbp("streams", "describe", name, "--json", **options)[1])["properties"]


def test_the_command_sets_removes_and_shows_properties(sbp):
    created = ("--property", "owner=billing", "--property", "empty=")
    assert sbp("streams", "create", "orders", *created)[0] == 0
    assert described(sbp, "orders") == {"empty": "", "owner": "billing"}
    changes = ("--property", "a=b\x1b", "--remove-property", "empty", "--remove-property", "c")
    assert sbp("streams", "update", "orders", *changes, "--if-property", "owner=billing") == (
        0,
        "updated orders (id 1): retention for ever, a = b\\x1b, empty removed, c is not there\n",
    )
    shown = sbp("streams", "describe", "orders")[1].splitlines()
    assert [line for line in shown if line.startswith("  property")] == [
        "  property   a = b\\x1b",
        "  property   owner = billing",
    ]
    for condition, why in (
        (("--if-property", "owner=sales"), "owner is 'billing', and 'sales' was expected"),
        (("--if-no-property", "owner"), "owner is 'billing', and none was expected"),
        (("--if-property", "absent="), "absent is not there, and '' was expected"),
    ):
        words = ("--rename", "renamed", "--retention", "1d", "--property", "owner=x", *condition)
        exit_code, said = sbp("streams", "update", "orders", *words)
        assert (exit_code, why in said) == (1, True), said
    assert described(sbp, "orders")["owner"] == "billing"
    free = ("--property", "owner=x", "--if-no-property", "absent")
    assert sbp("streams", "update", "orders", *free)[0] == 0
    assert sbp("streams", "delete", "orders", "--yes")[0] == 0
    assert sbp("streams", "create", "orders")[0] == 0
    assert described(sbp, "orders") == {}


@pytest.mark.parametrize(
    "words",
    [
        ("--property", "owner"),
        ("--property", "=x"),
        ("--property", "a b=x"),
        ("--property", "a=1", "--property", "a=2"),
        ("--property", "a=1", "--remove-property", "a"),
        ("--if-property", "a=1"),
    ],
)
def test_words_that_are_no_change_of_properties_are_refused(sbp, words):
    sbp("streams", "create", "refused", "--if-missing")
    assert sbp("streams", "update", "refused", *words)[0] == 2
    assert described(sbp, "refused") == {}


def test_a_file_has_all_properties_of_a_stream_and_a_backup_keeps_them(sbp, tmp_path):
    path = tmp_path / "cluster.toml"

    def apply(text, *options):
        path.write_text(text, encoding="utf-8")
        return sbp("apply", str(path), *options)[1].splitlines()

    assert apply(FILE, "--dry-run") == [
        "+ stream declared retention=7d",
        "~ stream declared + property note=, + property owner=billing",
        "+ stream bare",
        "3 changes: nothing is changed yet",
    ]
    assert apply(FILE)[-1] == "3 changes: done"
    assert apply(FILE) == ["0 changes"]
    sbp("streams", "update", "declared", "--property", "other=1", "--property", "owner=x")
    sbp("streams", "update", "bare", "--property", "kept=\u00e9")
    assert apply(FILE, "--dry-run")[0] == (
        "~ stream declared - property other, ~ property owner=billing"
    )
    (change, *_) = apply(FILE, "--json")
    assert json.loads(change)["properties"] == {"other": None, "owner": "billing"}
    assert described(sbp, "declared") == {"note": "", "owner": "billing"}
    assert described(sbp, "bare") == {"kept": "\u00e9"}, "without a table they are left alone"
    assert "cannot be the key" in apply(FILE + '[streams.bare.properties]\n"a b" = ""\n')[0]
    assert sbp("backup", "create", str(tmp_path / "backups"))[0] == 0
    with WarmCluster(tmp_path / "new") as new:
        assert sbp("restore", str(tmp_path / "backups"), cluster=new)[0] == 0
        assert described(sbp, "declared", cluster=new) == {"note": "", "owner": "billing"}
        assert described(sbp, "bare", cluster=new) == {"kept": "\u00e9"}
