"""Requests over HTTP act with the identity of their token, and with no other."""

import ssl

import httpx
import pytest

from sbp_core.access.rights import Grant, Right
from sbp_core.client import Client, Connecting, Credentials, StreamSpec
from sbp_core.tls import ServerTls
from tests.support.security import AUDIENCE, ISSUER, Authority, Issuer
from tests.support.warm import WarmCluster
from tests.support.web import http_client, serving_http

TEXT = {"Content-Type": "text/plain"}
RECORDS = "/v1/streams/orders/records"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def files(authority):
    pair = authority.issue("127.0.0.1", "localhost", common_name="node1")
    return ServerTls(pair.cert_file, pair.key_file, authority.ca_file)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, files, authority, issuer):
    """A cluster that wants identities. `writer` may append to its stream, `reader` may read it."""
    options = ("--auth-admin", "alice", "--auth-jwks-file", str(issuer.jwks_file))
    options += ("--auth-issuer", ISSUER, "--auth-audience", AUDIENCE)
    folder = tmp_path_factory.mktemp("cluster")
    token_file = folder / "token"
    token_file.write_bytes(issuer.token("alice"))
    with WarmCluster(folder / "data", options=options, tls=files) as served:
        how = Connecting(tls=authority.client(), credentials=Credentials(token_file))
        with Client(served.endpoint, connecting=how) as client:
            client.create_streams([StreamSpec("orders")])
            client.change_grants(
                [Grant("writer", Right.APPEND, "orders"), Grant("reader", Right.READ, "orders")]
            )
        yield served


@pytest.fixture(scope="module")
def http(tmp_path_factory, cluster, authority):
    options = ("--tls-ca", str(authority.ca_file))
    with (
        serving_http(tmp_path_factory.mktemp("http"), cluster.endpoint, *options) as served,
        http_client(served) as client,
    ):
        yield client


def bearer(token):
    return {"Authorization": f"Bearer {token.decode()}"}


def append(http, **headers):
    return http.post(RECORDS, content="a", headers=TEXT | headers)


def tail(http, issuer):
    return http.get("/v1/streams/orders", headers=bearer(issuer.token("reader"))).json()[
        "next_offset"
    ]


def test_each_request_has_the_rights_of_its_token(http, issuer):
    writer, reader = (bearer(issuer.token(subject)) for subject in ("writer", "reader"))
    before = tail(http, issuer)
    assert append(http, **writer).status_code == 200
    refused = append(http, **reader)
    assert (refused.status_code, refused.json()["outcome"]) == (403, "not applied")
    assert append(http, **bearer(issuer.token("stranger"))).status_code == 403
    assert http.get(RECORDS, headers=writer).status_code == 403
    assert http.get(RECORDS, headers=reader).status_code == 200
    assert http.delete("/v1/streams/orders", headers=writer).status_code == 403
    assert (
        http.put("/v1/streams/orders", json={"retention_bytes": 1}, headers=writer).status_code
        == 403
    )
    assert tail(http, issuer) == before + 1


def test_the_right_to_append_is_checked_before_the_body_is_read(http, issuer):
    for subject, status in (("reader", 403), ("writer", 413)):
        huge = b"a" * (17 << 20)
        headers = TEXT | bearer(issuer.token(subject))
        assert http.post(RECORDS, content=huge, headers=headers).status_code == status


def test_a_retry_with_a_key_needs_no_right_to_read(http, issuer):
    headers = bearer(issuer.token("writer")) | {"Idempotency-Key": "one"}
    first, second = append(http, **headers), append(http, **headers)
    assert first.json() == second.json()
    assert second.headers["idempotent-replay"] == "true"


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_a_request_without_a_good_token_is_not_authenticated(http, issuer, tmp_path, scheme):
    before = tail(http, issuer)
    other = Issuer(tmp_path)
    for token in (b"", b"a.b.c", b"two words", issuer.token("writer", seconds=-600)):
        refused = append(http, Authorization=f"{scheme} {token.decode()}".strip())
        assert refused.status_code == 401, refused.text
        assert refused.headers["www-authenticate"] == "Bearer"
    assert append(http).status_code == 401
    assert append(http, **bearer(other.token("writer"))).status_code == 401
    assert tail(http, issuer) == before


def test_a_page_of_another_site_needs_a_token(http, issuer):
    foreign = {"Origin": "http://evil.example"}
    assert append(http, **foreign).status_code == 403
    assert append(http, **foreign, **bearer(issuer.token("writer"))).status_code == 200


def test_the_identity_of_the_process_is_for_requests_without_a_token(
    tmp_path, cluster, authority, issuer
):
    token_file = tmp_path / "token"
    token_file.write_bytes(issuer.token("writer"))
    options = ("--tls-ca", str(authority.ca_file), "--token-file", str(token_file))
    with serving_http(tmp_path, cluster.endpoint, *options) as served, http_client(served) as http:
        assert append(http).status_code == 200
        assert append(http, **bearer(issuer.token("reader"))).status_code == 403
        assert append(http, Authorization="Bearer a.b.c").status_code == 401
        assert append(http, Origin="http://evil.example").status_code == 403


@pytest.fixture(scope="module")
def trusting(tmp_path_factory, files):
    """A cluster that speaks TLS and wants no identities."""
    with WarmCluster(tmp_path_factory.mktemp("trusting") / "data", tls=files) as served:
        with Client(served.endpoint, connecting=Connecting(tls=files.as_client)) as client:
            client.create_streams([StreamSpec("orders")])
        yield served


def test_beyond_the_machine_no_cluster_is_open_to_any_token(
    tmp_path, trusting, files, authority, issuer
):
    options = ("--host", "0.0.0.0", "--tls-ca", str(authority.ca_file))
    options += ("--https-cert", str(files.cert_file), "--https-key", str(files.key_file))
    with serving_http(tmp_path, trusting.endpoint, *options) as served:
        context = ssl.create_default_context(cafile=authority.ca_file)
        url = f"https://127.0.0.1:{served.port}"
        with httpx.Client(base_url=url, verify=context, trust_env=False) as https:
            assert append(https).status_code == 401
            refused = append(https, **bearer(issuer.token("writer")))
            assert refused.status_code == 401
            assert "accepts none" in refused.json()["detail"]
            assert https.get("/v1/openapi.json", headers={"Host": "any"}).status_code == 200


def test_on_the_machine_itself_a_cluster_without_identities_needs_no_token(
    tmp_path, trusting, authority, issuer
):
    options = ("--tls-ca", str(authority.ca_file))
    with serving_http(tmp_path, trusting.endpoint, *options) as served, http_client(served) as http:
        assert append(http).status_code == 200
        assert append(http, **bearer(issuer.token("writer"))).status_code == 401


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--host", "0.0.0.0"), "--https-cert"),
        (("--host", "0.0.0.0", "--insecure", "--token-file", "t", "--tls-ca", "ca"), "would act"),
        (("--https-cert", "x"), "both or neither"),
        (("--body-bytes-max", "0"), "expected an integer in 1"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path, options, reason):
    with (
        pytest.raises(AssertionError, match=reason),
        serving_http(tmp_path, "127.0.0.1:1", *options),
    ):
        pass
