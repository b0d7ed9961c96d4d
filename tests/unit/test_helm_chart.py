"""The Helm chart in conf/helm: Helm and Kubernetes' schemas accept it, and servers its options."""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.support.machines import parsed
from tests.unit.test_conf import CONF, CONFIGURATIONS

HELM = shutil.which("helm")
pytestmark = [
    pytest.mark.deployments,
    pytest.mark.skipif(
        HELM is None, reason="needs Helm: go install helm.sh/helm/v3/cmd/helm@v3.22.0"
    ),
]

CHART = CONF / "helm" / "sbp"
THREE_NODES = ("--values", str(CHART / "values-three-nodes.yaml"))
AUTH = """[auth]
admins = ["CN=alice"]
jwks_file = "/etc/sbp/tls/jwks.json"
issuer = "https://id.example.org"
audience = "sbp"
"""
IDENTITIES = (
    *("--set", "tlsSecret=sbp-tls,storageClass=fast"),
    *("--set-literal", f"pd.config={AUTH}", "--set-literal", f"rangeServer.config={AUTH}"),
)
CASES = {
    "one-node": ("--set", "insecure=true"),
    "three-nodes": (*THREE_NODES, "--set", "insecure=true"),
    "identities": (*THREE_NODES, *IDENTITIES),
}
cases = pytest.mark.parametrize("values", CASES.values(), ids=CASES)


def helm(*words):
    return subprocess.run([HELM, *words], capture_output=True, text=True, timeout=120, check=False)


def rendered(values):
    """Return the objects of a release `sbp`, by kind and name."""
    made = helm("template", "sbp", CHART, "--namespace", "logs", *values)
    assert made.returncode == 0, made.stderr
    objects = list(yaml.safe_load_all(made.stdout))
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(by_name) == len(objects) == 8
    return by_name


def pods(objects, command):
    """Return the pods of a command by name, with the variables in their options filled in."""
    found = objects["StatefulSet", f"sbp-{command}"]["spec"]
    made = {}
    for n in range(found["replicas"]):
        name = f"sbp-{command}-{n}"
        variables = {"POD_NAME": name, "NODE_NAME": f"node{n}", "STORE": "postgresql://sbp@db/sbp"}
        text = yaml.safe_dump(found["template"]["spec"])
        for variable, value in variables.items():
            text = text.replace(f"$({variable})", value)
        made[name] = yaml.safe_load(text)
    return made


def settings_of(pod, objects, folder):
    """Return the settings of the server in a pod, whose configuration file is put in `folder`."""
    command, *words = pod["containers"][0]["args"]
    options = parsed(command, *words)
    assert options["config"] == f"/etc/sbp/config/{command}.toml"
    path = folder / f"{command}.toml"
    path.write_text(objects["ConfigMap", f"sbp-{command}"]["data"][path.name], encoding="utf-8")
    return CONFIGURATIONS[command].load(options | {"config": str(path)}).servers


@cases
def test_helm_has_no_objection(values):
    linted = helm("lint", "--strict", CHART, *values)
    assert (linted.returncode, "WARNING" in linted.stdout) == (0, False), linted.stdout


@cases
def test_the_schemas_of_kubernetes_accept_each_object(values):
    reason = "needs Kubernetes' schemas: pip install kubernetes-validate"
    schemas = pytest.importorskip("kubernetes_validate", reason=reason)
    for each in rendered(values).values():
        schemas.validate(each, "1.31", strict=True)


@cases
def test_servers_accept_their_options_and_find_each_other(values, tmp_path):
    objects = rendered(values)
    drivers, servers = (
        {name: settings_of(pod, objects, tmp_path) for name, pod in pods(objects, each).items()}
        for each in ("pd", "range-server")
    )
    assert (len(drivers), len(servers)) == ((2, 3) if "--values" in values else (1, 1))
    for name, settings in (drivers | servers).items():
        service = objects["Service", name.rpartition("-")[0]]
        assert settings.advertise_host == f"{name}.{service['metadata']['name']}.logs.svc"
        assert settings.advertise_port in [each["port"] for each in service["spec"]["ports"]]
        assert settings.auth_admins == (("CN=alice",) if "tlsSecret" in str(values) else ())
    endpoints = ",".join(each.public_endpoint(0) for each in drivers.values())
    assert {each.placement_driver for each in servers.values()} == {endpoints}
    assert {each.name for each in drivers.values()} == drivers.keys()
    assert len({each.rack for each in servers.values()}) == len(servers)


@cases
def test_a_pod_is_as_the_image_and_has_the_time_to_drain_of_compose(values):
    image = (CONF / "Dockerfile").read_text("utf-8")
    compose = yaml.safe_load((CONF / "compose-cluster.yaml").read_text("utf-8"))["services"]
    objects = rendered(values)
    for pod in (pods(objects, "pd") | pods(objects, "range-server")).values():
        (container,) = pod["containers"]
        mounts = {each["mountPath"]: each.get("readOnly") for each in container["volumeMounts"]}
        assert re.findall(r"^(?:USER|VOLUME) (.+)$", image, re.MULTILINE) == [
            str(pod["securityContext"]["runAsUser"]),
            next(each for each, is_read_only in mounts.items() if not is_read_only),
        ]
        files = {each.partition("=/")[2] for each in container["args"] if "=/" in each}
        assert {f"/{each}".rpartition("/")[0] for each in files} == mounts.keys() - {"/tmp"}
        assert f"{pod['terminationGracePeriodSeconds']}s" == compose["node1"]["stop_grace_period"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("pd.replicas=1", "clients would not be authenticated"),
        ("insecure=true,pd.replicas=2", "set pd.databaseSecret"),
    ],
)
def test_values_that_would_lose_records_are_refused(values, message):
    made = helm("template", "sbp", CHART, "--set", values)
    assert made.returncode != 0
    assert message in made.stderr
