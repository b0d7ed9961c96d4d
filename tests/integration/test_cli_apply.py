"""`sbp apply`: streams and grants as a file says them."""

import json

import pytest

from sbp_core.cli.main import main
from tests.support.warm import WarmCluster

FILE = """
[streams.declared]
retention = "7d"
replicas = 1
columns = ["id int64 not null", "name string"]

[streams."declared-log"]
retention_size = "1GiB"

[[grants]]
subject = "CN=etl,O=Acme"
right = "append"
pattern = "declared"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster for this module, as other tests list all grants of the shared one."""
    with WarmCluster(tmp_path_factory.mktemp("apply") / "data") as cluster:
        yield cluster


@pytest.fixture
def sbp(cluster, capfd):
    """Runs a command; returns its exit code and what it wrote."""

    def run(*words):
        exit_code = main([*words, "--endpoint", cluster.endpoint])
        return exit_code, *capfd.readouterr()

    return run


@pytest.fixture
def apply(sbp, tmp_path):
    """Applies a text; returns what `sbp` does."""

    def run(text, *options):
        path = tmp_path / "cluster.toml"
        path.write_text(text, encoding="utf-8")
        return sbp("apply", str(path), *options)

    return run


def test_a_file_is_applied_once(apply, sbp):
    _, shown, _ = apply(FILE, "--dry-run")
    assert shown.splitlines() == [
        "+ stream declared replicas=1 retention=7d",
        "~ stream declared + id int64 not null, + name string",
        "+ stream declared-log retention_size=1GiB",
        "+ CN=etl,O=Acme append declared",
        "4 changes: nothing is changed yet",
    ]
    assert apply(FILE)[1].endswith("4 changes: done\n")
    assert apply(FILE)[1] == "0 changes\n"
    assert sbp("acl", "grant", "CN=etl,O=Acme", "read", "*")[0] == 0
    assert sbp("acl", "grant", "CN=other", "read", "*")[0] == 0
    other = FILE.replace("7d", "3d").replace('"name string"', '"name string", "at date"')
    changes = [json.loads(line) for line in apply(other, "--json")[1].splitlines()]
    assert changes == [
        {"update": "declared", "retention_period_ms": 259_200_000, "done": True},
        {"schema": "declared", "differences": ["+ column at date is new"], "done": True},
        {"revoke": "CN=etl,O=Acme", "right": "read", "pattern": "*", "done": True},
    ]
    assert "CN=other" in sbp("acl", "list")[1]
    assert apply("")[1] == "0 changes\n", "what is not in the file is left alone"


@pytest.mark.parametrize(
    ("wrong", "right", "fault"),
    [
        ("7d", "7x", "stream fresh: '7x' is not 0 or a time"),
        ("retention_size", "size", "unknown field `size`"),
        ("int64", "int65", "stream fresh: "),
        ("replicas = 1", "replicas = 0", "stream fresh: Expected `int` >= 1 - at `$.replicas`"),
        ('"append"', '"fly"', "the grant to 'CN=etl,O=Acme'"),
        ("[streams.fresh", "[quotas]\n[streams.fresh", "unknown field `quotas`"),
        ("[[grants]]", "[[grants", "cluster.toml: "),
    ],
)
def test_a_file_with_a_fault_changes_nothing(apply, sbp, wrong, right, fault):
    text = FILE.replace("declared", "fresh").replace(wrong, right)
    exit_code, out, error = apply(f"[streams.early]\n{text}")
    assert (exit_code, out) == (2, "")
    assert fault in error
    assert "early" not in sbp("streams", "list")[1]


def test_columns_that_do_not_fit_change_nothing(apply):
    text = FILE.replace("declared", "typed")
    assert apply(text)[0] == 0
    exit_code, out, error = apply(text.replace("id int64", "id string").replace("7d", "3d"))
    assert (exit_code, out) == (2, "")
    assert "stream typed: this does not fit the stream's schema" in error
