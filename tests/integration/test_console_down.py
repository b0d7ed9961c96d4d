"""Pages of the web console while a range server is down: they show what is known without it."""

from __future__ import annotations

import asyncio
import html
import re

import httpx

from sbp_core.client import AppendItem, Connecting, StreamSpec
from sbp_core.settings.web_settings import WebSettings
from sbp_core.web.browsers import Sessions
from sbp_core.web.callers import Callers
from sbp_core.web.console.app import make_app
from sbp_core.web.console.histories import Sampler
from sbp_core.web.console.site import Site, make_client
from tests.support.cluster import core_cluster, rows_batch


def text_of(answer):
    """The words of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def test_what_is_known_is_shown_without_the_server(tmp_path):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            (info,) = await cluster.client.create_streams([StreamSpec("orders")])
            await cluster.client.append([AppendItem(info.stream_id, rows_batch([b"a", b"b"]))])
            settings = WebSettings(
                endpoint=cluster.client.endpoint, connecting=Connecting(), port=0
            )
            callers = Callers(settings, Sessions(), make=make_client)
            stopping = asyncio.Event()
            app = make_app(Site(callers, Sampler(stopping), settings.endpoint))
            transport = httpx.ASGITransport(callers.counting(app))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
                assert "2 records" in text_of(await web.get("/streams/orders/records?from=0"))
                await cluster.client.seal_streams([info.stream_id])
                await cluster.server.stop()
                for _ in range(100):  # the metadata lag behind the end of a server
                    if "records from 2 on" in text_of(await web.get("/streams/orders/records")):
                        break
                pages = {
                    path: await web.get(path)
                    for path in ("/", "/streams", "/streams/orders", "/streams/orders/records")
                }
            assert {each.status_code for each in pages.values()} == {200}
            words = {path: text_of(each) for path, each in pages.items()}
            assert "orders" in words["/streams"]
            assert "is down: records from 2 on cannot be read now" in words["/streams/orders"]
            assert "Records at least 2" in words["/streams/orders"]
            assert "P 1 down" in words["/streams/orders"]
            assert "offsets 0 to 2, exclusive, were passed over" in words["/streams/orders/records"]
            stopping.set()
            await callers.close()

    asyncio.run(asyncio.wait_for(body(), 120))
