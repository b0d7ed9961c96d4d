"""`sbp kafka`: clients of Kafka write to streams and read them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core.cli.commands import Command
from sbp_core.cli.gateway_service import GatewayService, gateway_options
from sbp_core.cli.options import ClientOptions
from sbp_core.kafka import listener_class
from sbp_core.settings.kafka_settings import KafkaSettings

if TYPE_CHECKING:
    from sbp_core.kafka.service import KafkaListener
    from sbp_core.web.callers import Callers


@click.command(cls=Command, example="sbp kafka --port 9092")
@gateway_options(KafkaSettings)
def kafka(client: ClientOptions, **given: Any) -> int:
    """Serve clients of Apache Kafka, which write to streams and read them without a change.

    A topic with n partitions is the streams TOPIC-0 to TOPIC-(n-1); any other stream is a topic
    with one partition. Where other machines connect to, clients sign in by SASL: PLAIN, with a
    token of the cluster as the password, or OAUTHBEARER.
    """
    return _KAFKA.run(client, given)


def _make(settings: KafkaSettings, callers: Callers, stopping: asyncio.Event) -> KafkaListener:
    del stopping
    return listener_class()(settings, callers)


_KAFKA: Final = GatewayService("kafka", KafkaSettings, _make, schemes=("PLAINTEXT://", "SSL://"))
