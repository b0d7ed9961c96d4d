"""The files of TLS: what is wrong with them is said before anything is served or sent."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization

from sbp_core.client import Client, Connecting, Tls
from sbp_core.errors import ConfigurationError
from sbp_core.settings.server_settings import PlacementDriverSettings
from sbp_core.tls import Contexts, ServerTls
from sbp_core.tls_expiry import expiries, warn
from tests.support.security import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def fault_of(files) -> str:
    with pytest.raises(ConfigurationError) as raised:
        Contexts(files)
    return str(raised.value)


@pytest.mark.parametrize("missing", ["cert_file", "key_file", "ca_file"])
def test_a_file_that_is_missing_is_named(authority, tmp_path, missing):
    pair = authority.issue()
    files = {"cert_file": pair.cert_file, "key_file": pair.key_file, "ca_file": authority.ca_file}
    files[missing] = tmp_path / "nothing.pem"
    assert "nothing.pem cannot be read: No such file or directory" in fault_of(ServerTls(**files))
    assert "nothing.pem cannot be read" in fault_of(Tls(**files))


def test_a_key_of_another_certificate_is_refused(authority):
    one, other = authority.issue(), authority.issue()
    files = ServerTls(one.cert_file, other.key_file, authority.ca_file)
    assert f"{other.key_file} is not that of the certificate in {one.cert_file}" in fault_of(files)


def test_files_that_are_not_pem_are_refused(authority, tmp_path):
    other = tmp_path / "other.pem"
    other.write_text("nothing of that kind")
    pair = authority.issue()
    assert "no certificates of authorities in PEM" in fault_of(Tls(other))
    assert "no certificate and key in PEM" in fault_of(Tls(authority.ca_file, other, pair.key_file))


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(authority, tmp_path):
    pair = authority.issue()
    key = serialization.load_pem_private_key(pair.key_file.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    fault = fault_of(Tls(authority.ca_file, pair.cert_file, encrypted))
    assert "encrypted; decrypt it" in fault


def test_a_client_cannot_be_made_with_files_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Client("localhost:1", connecting=Connecting(tls=Tls(tmp_path / "nothing.pem")))


def test_a_certificate_needs_its_key():
    with pytest.raises(ConfigurationError, match="without a key file"):
        Tls("ca.pem", "cert.pem")


@pytest.mark.parametrize("given", ["tls_cert_file", "tls_key_file", "tls_client_ca_file"])
def test_a_server_with_some_of_the_files_says_which_it_needs(tmp_path, given):
    with pytest.raises(ConfigurationError, match=r"is set without .*--tls-cert, --tls-key"):
        PlacementDriverSettings(data_dir=tmp_path, **{given: tmp_path / "one.pem"})


def test_a_broken_file_is_reported_once_and_the_former_one_stays(authority, caplog):
    pair = authority.issue()
    contexts = Contexts(authority.server(pair))
    former = contexts.current()
    good = pair.cert_file.read_bytes()
    pair.cert_file.write_bytes(b"broken")
    with caplog.at_level(logging.WARNING):
        assert contexts.current() is former
        assert contexts.current() is former
    assert len(caplog.records) == 1
    assert "the former ones stay" in caplog.text
    pair.cert_file.write_bytes(good)
    assert contexts.current() is not former


def test_days_before_a_certificate_expires_the_log_says_so(authority, caplog):
    ends = [datetime(2031, 5, 1, tzinfo=UTC), datetime(2032, 5, 1, tzinfo=UTC)]
    pair, renewed = (authority.issue(not_after=each) for each in ends)
    contexts = Contexts(authority.server(pair))

    def lines_at(end, *, days):
        caplog.clear()
        for _ in range(2):
            warn((end - timedelta(days=days)).timestamp())
        return [each for each in caplog.messages if f"file={pair.cert_file} " in each]

    def says(state, end):
        file = f"file={pair.cert_file} at={end.isoformat()}"
        return [f"certificate {state} {file}: replace it"]

    for end in ends:
        assert lines_at(end, days=31) == []
        for days in (30, 7, 1):
            assert lines_at(end, days=days) == says("expires", end)
            assert lines_at(end, days=days - 0.5) == []
        assert lines_at(end, days=0) == says("has expired", end)
        pair.replace_with(renewed)
        assert contexts.current()


def test_a_file_of_authorities_is_of_use_until_all_of_them_have_expired(authority, tmp_path):
    """A chain is of use until the certificate in front of it has expired."""
    ends = [datetime(year, 1, 1, tzinfo=UTC) for year in (2031, 2033, 2032)]
    chain = [authority.issue(not_after=each) for each in ends]
    pair = chain[0]
    together = b"".join(each.cert_file.read_bytes().partition(b"\n\n")[0] for each in chain)
    pair.cert_file.write_bytes(together)
    (tmp_path / "ca.pem").write_bytes(together)
    files = ServerTls(pair.cert_file, pair.key_file, tmp_path / "ca.pem", authority.ca_file)
    first, last = ends[0].timestamp(), ends[1].timestamp()
    found = {each.path: (each.first, each.last) for each in expiries(Contexts(files))}
    assert found.keys() == {pair.cert_file, tmp_path / "ca.pem", authority.ca_file}
    assert found[pair.cert_file] == (first, first)
    assert found[tmp_path / "ca.pem"] == (first, last)
