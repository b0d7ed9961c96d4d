"""`sbp_core.connect`: imported when it is asked for, and refused where it makes no sense."""

import subprocess
import sys

import pytest

import sbp_core
from sbp_core import aio, app
from sbp_core.client import Credentials
from sbp_core.errors import ConfigurationError

LIGHT = """
import sys
import sbp_core
assert not {"pyarrow", "asyncio", "sbp_core.client"} & sys.modules.keys(), sys.modules.keys()
sbp_core.connect
assert "sbp_core.client" in sys.modules
"""


def test_the_package_is_light_until_connect_is_asked_for():
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_the_short_names_are_those_of_the_client():
    assert sbp_core.connect is app.connect
    assert aio.connect is app.aio.connect
    with pytest.raises(AttributeError, match="no attribute 'disconnect'"):
        _ = sbp_core.disconnect


@pytest.mark.parametrize("connect", [sbp_core.connect, aio.connect])
def test_what_cannot_work_is_refused_before_anything_is_sent(connect):
    with pytest.raises(ConfigurationError, match="is not host:port"):
        connect("nowhere")
    with pytest.raises(ConfigurationError, match="over TLS only"):
        connect("127.0.0.1:1", credentials=Credentials(token_env="TOKEN"))
