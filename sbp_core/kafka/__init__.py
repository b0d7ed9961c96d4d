"""The Kafka gateway: clients of Kafka write to streams and read them, without a change.

A topic with n partitions is the streams `TOPIC-0` to `TOPIC-(n-1)`; any other stream is a topic
with one partition. The gateway is a client of the cluster and keeps no data of its own. kio has the
messages of the protocol, aiokafka reads and builds record batches.
"""
