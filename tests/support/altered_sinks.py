"""Sinks that do what goes wrong in clusters. Their classes are local, so Spark pickles them."""

from __future__ import annotations

from pathlib import Path

from sbp_spark.datasource import SbpDataSource
from sbp_spark.writing.sinks import SbpStreamWriter


def make_doubling_sink():
    """A sink each task of which writes twice and names the second only, as speculation does."""

    class DoublingWriter(SbpStreamWriter):
        def write(self, iterator):
            batches = list(iterator)
            super().write(iter(batches))
            return super().write(iter(batches))

    class DoublingSink(SbpDataSource):
        @classmethod
        def name(cls):
            return "sbp-doubling"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return DoublingWriter(super().streamWriter(schema, overwrite)._options)

    return DoublingSink


def make_forgetful_sink(marker: Path):
    """A sink whose commit takes effect and fails, until there is a file `marker`."""

    class ForgetfulWriter(SbpStreamWriter):
        def commit(self, messages, batchId):  # noqa: N803
            super().commit(messages, batchId)
            if not marker.exists():
                marker.touch()
                raise RuntimeError("the answer was lost")

    class ForgetfulSink(SbpDataSource):
        @classmethod
        def name(cls):
            return "sbp-forgetful-sink"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return ForgetfulWriter(super().streamWriter(schema, overwrite)._options)

    return ForgetfulSink
