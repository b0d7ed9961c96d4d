"""The admin endpoint of servers, from outside: processes, HTTP, and a parser of the metrics."""

import asyncio
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from test_separate_processes import TIMEOUT_SECONDS, Server, running

from sbp_core.access.identity import subject_of_certificate
from sbp_core.admin.endpoint import LIMITS, AdminEndpoint
from sbp_core.client import EARLIEST, AppendItem, Client, FetchItem, StreamSpec
from sbp_core.cluster import Cluster
from sbp_core.pd import PlacementDriver
from sbp_core.processes import reserved_ports
from sbp_core.settings.server_settings import PlacementDriverSettings
from tests.support.cluster import rows_batch
from tests.support.security import AUDIENCE, ISSUER, Authority, Issuer, serving_keys
from tests.support.warm import WarmCluster

ADMIN = ("--admin-port", "0")
CONF = Path(__file__).parents[2] / "conf"


def ask(endpoint, path, *, tls=None, token=None, method="GET", host=None):
    """Return the status and the body of an answer."""
    scheme = "http" if tls is None else "https"
    request = urllib.request.Request(f"{scheme}://{endpoint}{path}", method=method)
    if host is not None:
        request.add_header("Host", host)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token.decode()}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def readiness(endpoint):
    """Return the status of `/readyz` and the codes of its reasons."""
    status, body = ask(endpoint, "/readyz")
    return status, [each["code"] for each in json.loads(body)["reasons"]]


def wait_for(question, expected):
    """Ask until the answer is the expected one."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (found := question()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def samples(endpoint, **options):
    """Return all samples, by name and labels."""
    status, body = ask(endpoint, "/metrics", **options)
    assert status == 200, body
    return {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(body)
        for each in family.samples
    }


def admin_of(server):
    return json.loads(server.ready_path.read_text())["admin"]


def append(client, stream_id, *rows):
    (outcome,) = client.append([AppendItem(stream_id, rows_batch(list(rows)))])
    return outcome.base_offset


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A cluster with an admin endpoint, and where that is."""
    folder = tmp_path_factory.mktemp("admin")
    with WarmCluster(folder, options=ADMIN) as cluster:
        yield cluster, json.loads((folder / "ready.json").read_text())["admin"]


def test_what_clients_did_is_in_the_metrics(served):
    cluster, admin = served
    with Client(cluster.endpoint) as client:
        stream_id = client.create_streams([StreamSpec("counted")])[0].stream_id
        assert append(client, stream_id, b"a", b"b", b"c") == 0
        assert len(list(client.fetch([FetchItem(stream_id, EARLIEST, None, 1 << 20)]))) == 1
        client.commit_cursors("etl", {stream_id: 1})
        wait_for(
            lambda: samples(admin).get(
                ("sbp_group_lag_records", ("group", "etl"), ("stream", "counted"))
            ),
            2.0,
        )
    found = samples(admin)
    assert found["sbp_append_batches_total",] == 1
    assert found["sbp_append_records_total",] == 3
    assert found["sbp_fetch_records_total",] == 3
    assert found["sbp_append_bytes_total",] > 0
    assert found["sbp_group_commit_entries_count",] >= 1
    appends = (("operation", "append"), ("role", "range_server"))
    assert found["sbp_request_seconds_count", *appends] == 1
    assert 0 < found["sbp_request_seconds_sum", *appends] < TIMEOUT_SECONDS
    assert found["sbp_request_seconds_bucket", ("le", "+Inf"), *appends] == 1
    assert found["sbp_request_failures_total", *appends] == 0
    assert found["sbp_pd_rows", ("of", "streams")] == 1
    assert found["sbp_pd_leader",] == found["sbp_ready",] == 1
    assert found["process_open_fds",] > 0


def test_each_stream_and_group_has_series(tmp_path):
    """Also a cursor in a range before the last one, on whichever of two servers that is."""
    with (
        WarmCluster(tmp_path, range_servers=2, options=ADMIN) as cluster,
        Client(cluster.endpoint) as client,
    ):
        ready = json.loads((cluster.data_dir / "ready.json").read_text())
        specs = [StreamSpec("loud"), StreamSpec("quiet"), StreamSpec(None)]
        loud, quiet, nameless = (each.stream_id for each in client.create_streams(specs))
        for _ in range(3):
            append(client, loud, *[b"x" * 100] * 5)
            client.seal_streams([loud])
        append(client, quiet, b"a")
        append(client, nameless, b"a")
        list(client.fetch([FetchItem(quiet, EARLIEST, None, 1 << 20)]))
        client.commit_cursors("etl", {loud: 2, quiet: 1, nameless: 0})
        before = time.time()
        time_of = client.append_times({loud: 2})[loud] / 1000

        def lag(stream, what="seconds"):
            labels = ("group", "etl"), ("stream", stream)
            return samples(ready["admin"]).get((f"sbp_group_lag_{what}", *labels))

        wait_for(lambda: lag("loud") is not None, True)
        assert before - time_of < lag("loud") < time.time() - time_of
        assert lag(str(nameless)) > 0
        assert (lag("quiet"), lag("loud", "records"), lag("quiet", "records")) == (0, 13, 0)
        found = samples(ready["admin"])
        assert found["sbp_stream_ranges", ("stream", "loud")] == 4
        assert found["sbp_stream_ranges", ("stream", "quiet")] == 1
        assert found["sbp_pd_ranges",] == 6

        def counted(metric, stream):
            labels = ("stream", stream)
            return sum(
                samples(each).get((metric, labels), 0) for each in ready["range_server_admins"]
            )

        assert counted("sbp_stream_append_records_total", "loud") == 15
        assert counted("sbp_stream_append_bytes_total", "loud") > 1500
        assert counted("sbp_stream_fetch_records_total", "quiet") == 1
        assert counted("sbp_stream_fetch_bytes_total", "quiet") > 0
        assert counted("sbp_stream_append_records_total", str(nameless)) == 1
        assert counted("sbp_stream_append_records_total", "*") == 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_prometheus_has_no_objection_to_the_metrics(served):
    """It looks at their names, units, types and texts."""
    page = ask(served[1], "/metrics")[1].encode()
    run = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (run.returncode, run.stdout + run.stderr) == (0, b"")


def test_health_and_readiness_and_settings_are_json(served):
    _, admin = served
    assert ask(admin, "/healthz")[0] == 200
    assert readiness(admin) == (200, [])
    shown = json.loads(ask(admin, "/config")[1])
    assert shown["serve"]["admin_port"] == 0
    assert shown["range_server"]["fsync"] == "always"
    assert ask(admin, "/nothing")[0] == 404
    assert ask(admin, "/config", method="POST")[0] == 405


def test_a_page_of_another_machine_reads_nothing_through_a_browser_of_this_one(served):
    _, admin = served
    for path in ("/metrics", "/config"):
        assert ask(admin, path, host="rebound.example.org:9464")[0] == 403
        assert (
            ask(admin, path, host="localhost:9464")[0] == ask(admin, path, host="[::1]")[0] == 200
        )
    assert ask(admin, "/readyz", host="rebound.example.org")[1] == '{\n  "ready": true\n}\n'


def rules():
    """Return the expressions of the alert rules, which are for people too."""
    content = yaml.safe_load((CONF / "alerts.yml").read_text("utf-8"))
    alerts = [rule for group in content["groups"] for rule in group["rules"]]
    for each in alerts:
        assert each["labels"]["severity"] in {"warning", "critical"}
        assert each["annotations"].keys() == {"summary", "description"}
    assert len({each["alert"] for each in alerts}) == len(alerts)
    return [each["expr"] for each in alerts]


def panels():
    """Return the expressions of the dashboard, whose panels fill a grid without overlaps."""
    dashboard = json.loads((CONF / "grafana-dashboard.json").read_text("utf-8"))
    cells = [
        (x, y)
        for place in (each["gridPos"] for each in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    return [target["expr"] for each in dashboard["panels"] for target in each["targets"]]


@pytest.mark.parametrize("expressions", [rules, panels])
def test_what_the_alerts_and_the_dashboard_name_is_there(served, expressions):
    _, admin = served
    families = text_string_to_metric_families(ask(admin, "/metrics")[1])
    known = set()
    for each in families:
        suffixes = ("_bucket", "_count", "_sum") if each.type == "histogram" else ("",)
        total = "_total" if each.type == "counter" else ""
        known |= {f"{each.name}{total}{suffix}" for suffix in suffixes}
    labels = {label for catalog in Cluster.catalogs for each in catalog for label in each.labels}
    labels |= {"instance", "job", "le"}
    named = set()
    for each in expressions():
        named |= set(re.findall(r"\b(?:sbp|process)_\w+", re.sub('"[^"]*"', "", each)))
        grouped = re.findall(r"by \(([^)]*)\)", each)
        assert {name for some in grouped for name in some.split(", ")} <= labels, each
        assert set(re.findall(r"(\w+)(?==~?\"|!=)", each)) <= labels, each
        assert all(each.count(opening) == each.count(end) for opening, end in ("()", "{}", "[]"))
    assert len(named) > 10
    assert named - known == set()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x21 no HTTP at all \r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n" % (b"a/" * 4000),
        b"POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * 9999,
    ],
    ids=["no HTTP", "a long header", "a long path", "a body without end"],
)
def test_a_bad_request_is_answered_with_an_error(served, sent):
    _, admin = served
    host, _, port = admin.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as peer:
        peer.sendall(sent)
        answer = peer.recv(1000)
    assert answer.startswith(b"HTTP/1.1 4")
    assert ask(admin, "/healthz")[0] == 200


def test_connections_without_a_request_make_room_for_others(served):
    _, admin = served
    host, _, port = admin.rpartition(":")
    with ExitStack() as opened:
        for _ in range(2 * LIMITS.connections_max):
            peer = opened.enter_context(socket.create_connection((host, int(port))))
            peer.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert ask(admin, "/healthz")[0] == 200


def test_the_port_is_closed_when_the_server_has_ended(tmp_path):
    with running(tmp_path, "pd", *ADMIN) as driver:
        admin = admin_of(driver)
        assert f"admin             {admin}" in driver.lines
        assert json.loads(ask(admin, "/readyz")[1])["placement_driver"]["role"] == "leader"
        assert driver.end()[0] == 0
        with pytest.raises(urllib.error.URLError):
            ask(admin, "/healthz")


def test_an_admin_port_that_is_taken_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        driver = Server(tmp_path, "pd", "--admin-port", str(port))
        errors = driver.process.communicate(timeout=TIMEOUT_SECONDS)[1]
    assert driver.process.returncode == 2
    (line,) = errors.splitlines()
    assert f"the admin endpoint cannot listen on 127.0.0.1:{port}: Address already in use" in line


def test_a_range_server_is_ready_while_its_placement_driver_answers(tmp_path):
    config = tmp_path / "range-server.toml"
    config.write_text("[range_server]\nheartbeat_interval_ms = 100\n")
    with reserved_ports(2) as port:
        words = ("--pd", f"127.0.0.1:{port}", "--config", str(config))
        server = Server(tmp_path, "range-server", *words, "--admin-port", str(port + 1))
        try:
            admin = f"127.0.0.1:{port + 1}"
            wait_for(lambda: is_listening(port + 1), True)
            wait_for(lambda: readiness(admin), (503, ["joining"]))
            assert ask(admin, "/healthz")[0] == 200
            with running(tmp_path, "pd", "--port", str(port)):
                server.wait_until_ready()
                assert admin_of(server) == admin
                wait_for(lambda: readiness(admin), (200, []))
            wait_for(lambda: readiness(admin), (503, ["placement_driver_unreachable"]))
            wait_for(lambda: samples(admin)["sbp_placement_driver_reached",], 0.0)
            assert samples(admin)["sbp_ready",] == 0
            with running(tmp_path, "pd", "--port", str(port)):
                wait_for(lambda: readiness(admin), (200, []))
        finally:
            server.end(signal.SIGKILL)


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_loop_that_is_stuck_is_reported(tmp_path):
    async def body():
        settings = PlacementDriverSettings(data_dir=tmp_path, port=0)
        driver = PlacementDriver(settings)
        await driver.start()
        endpoint = AdminEndpoint(driver, settings, 0, dict, loop_seconds_max=0.1)
        admin = await endpoint.start()
        try:
            for path in ("/healthz", "/readyz", "/metrics"):
                assert (await asyncio.to_thread(ask, admin, path))[0] == 200
            for path in ("/healthz", "/readyz", "/metrics"):
                wait_for(lambda path=path: ask(admin, path)[0], 503)  # this is the server's loop
            for path in ("/healthz", "/readyz", "/metrics"):
                await asyncio.to_thread(wait_for, lambda path=path: ask(admin, path)[0], 200)
        finally:
            await endpoint.stop()
            await driver.stop()

    asyncio.run(body())


@contextmanager
def secured(folder, authority, keys, admin="alice"):
    """Run a placement driver that wants identities; yield its admin endpoint and certificate.

    `keys` are the options with the keys of tokens.
    """
    pair = authority.issue("127.0.0.1", common_name="node1")
    words = ["--tls-cert", pair.cert_file, "--tls-key", pair.key_file]
    words += ["--tls-ca", authority.ca_file, "--auth-admin", admin, "--auth-monitor", "prom"]
    words += [*keys, "--auth-issuer", ISSUER, "--auth-audience", AUDIENCE]
    with running(folder, "pd", *ADMIN, *map(str, words)) as driver:
        yield admin_of(driver), pair


def test_with_identities_details_need_one(tmp_path):
    authority, issuer = Authority(tmp_path / "ca"), Issuer(tmp_path)
    tls = ssl.create_default_context(cafile=authority.ca_file)
    with secured(tmp_path, authority, ["--auth-jwks-file", issuer.jwks_file]) as (admin, pair):
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            ask(admin, "/healthz")
        assert ask(admin, "/healthz", tls=tls)[0] == 200
        assert ask(admin, "/readyz", tls=tls) == (200, '{\n  "ready": true\n}\n')
        tokens = {each: issuer.token(each) for each in ("alice", "prom", "eve")}
        tokens |= {"nobody": None, "old": issuer.token("alice", seconds=-600), "bad": b"a.b.c"}

        def statuses(path):
            return {
                name: ask(admin, path, tls=tls, token=token)[0] for name, token in tokens.items()
            }

        refused = {"eve": 403, "nobody": 401, "old": 401, "bad": 401}
        assert statuses("/metrics") == {"alice": 200, "prom": 200, **refused}
        assert statuses("/config") == {"alice": 200, "prom": 403, **refused}
        full = json.loads(ask(admin, "/readyz", tls=tls, token=tokens["prom"])[1])
        assert full["placement_driver"]["role"] == "leader"
        assert json.loads(ask(admin, "/readyz", tls=tls, token=tokens["eve"])[1]) == {"ready": True}
        shown = ssl.create_default_context(cafile=authority.ca_file)
        own = authority.issue(common_name="carol")
        shown.load_cert_chain(own.cert_file, own.key_file)
        status, body = ask(admin, "/config", tls=shown)
        assert status == 403
        assert "carol" in body
        host, _, port = admin.rpartition(":")
        former = ssl.get_server_certificate((host, int(port)))
        pair.replace_with(authority.issue("127.0.0.1", common_name="node1"))
        assert ssl.get_server_certificate((host, int(port))) != former
        assert ask(admin, "/healthz", tls=tls)[0] == 200


def test_a_server_without_the_keys_of_tokens_says_why(tmp_path):
    authority, issuer = Authority(tmp_path / "ca"), Issuer(tmp_path)
    alice = authority.issue(common_name="alice")
    subject = subject_of_certificate(alice.cert_file.read_bytes())
    tls = ssl.create_default_context(cafile=authority.ca_file)
    tls.load_cert_chain(alice.cert_file, alice.key_file)
    with serving_keys(tmp_path) as (url, answers, ca_file):
        keys = ["--auth-jwks-url", url, "--auth-jwks-ca-file", ca_file]
        with secured(tmp_path, authority, keys, admin=subject) as (admin, _):
            status, body = ask(admin, "/readyz", tls=tls)
            (reason,) = json.loads(body)["reasons"]
            assert (status, reason["code"]) == (503, "token_keys_missing")
            assert "HTTP Error 503" in reason["reason"]
            assert samples(admin, tls=tls)["sbp_token_keys_failed_fetches",] > 0
            answers.append((200, {}, issuer.jwks))
            wait_for(lambda: ask(admin, "/readyz", tls=tls)[0], 200)
            wait_for(lambda: samples(admin, tls=tls)["sbp_token_keys_failed_fetches",], 0)


def test_a_certificate_that_has_expired_is_a_reason(tmp_path):
    authority, issuer = Authority(tmp_path / "ca"), Issuer(tmp_path)
    unchecked = ssl._create_unverified_context()
    alice = {"tls": unchecked, "token": issuer.token("alice")}
    keys = ["--auth-jwks-file", issuer.jwks_file]
    with secured(tmp_path, authority, keys) as (admin, pair):
        name = "sbp_certificate_expiry_timestamp_seconds"
        series = (name, ("file", str(pair.cert_file)))
        assert samples(admin, **alice)[series] > time.time()
        assert (name, ("file", str(authority.ca_file))) in samples(admin, **alice)
        pair.replace_with(authority.issue_expired())
        wait_for(lambda: ask(admin, "/readyz", **alice)[0], 503)
        _, body = ask(admin, "/readyz", **alice)
        assert [each["code"] for each in json.loads(body)["reasons"]] == ["certificate_expired"]
        wait_for(lambda: samples(admin, **alice)[series] < time.time(), True)
        pair.replace_with(authority.issue("127.0.0.1", common_name="node1"))
        wait_for(lambda: ask(admin, "/readyz", **alice)[0], 200)
