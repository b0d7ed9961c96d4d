"""The Kafka gateway: clients of Kafka write to streams and read them, without a change.

A topic with n partitions is the streams `TOPIC-0` to `TOPIC-(n-1)`; any other stream is a topic
with one partition. The gateway is a client of the cluster and keeps no data of its own. kio has the
messages of the protocol, aiokafka reads and builds record batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp_core.errors import ConfigurationError

if TYPE_CHECKING:
    from sbp_core.kafka.service import KafkaListener


def listener_class() -> type[KafkaListener]:
    """Return the listener. Raises ConfigurationError without the libraries that it needs."""
    try:
        from sbp_core.kafka.service import KafkaListener
    except ImportError as error:
        raise ConfigurationError(
            "the protocol of Kafka needs kio and aiokafka: pip install 'sbp-spark[kafka]'"
        ) from error
    return KafkaListener
