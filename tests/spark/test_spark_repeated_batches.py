"""Batch numbers that a sink has committed and gets again: equal rows are a repeat, others fail.

A checkpoint may be rewound, copied or restored, and streams renamed or created again.
"""

from __future__ import annotations

import shutil

import pytest
from pyspark.errors import StreamingQueryException

from sbp_core.client import StreamSpec, StreamUpdate
from sbp_spark.command import main
from tests.support.spark import append_values, forget_commit, numbered, wait_until_over


class Pipeline:
    """A query from one stream to another, with a checkpoint; ten more records for each run."""

    def __init__(self, sbp, client, streams, checkpoint):
        self.sbp, self.client, self.checkpoint = sbp, client, checkpoint
        self.source, self.sink = streams
        self.count = 0

    def add(self):
        append_values(self.client, self.source, numbered(self.count, self.count + 10))
        self.count += 10

    def run(self, checkpoint=None, sink=None, **options):
        """Write what is there now."""
        frame = self.sbp.load_stream(self.source).select("value")
        writer = frame.writeStream.format("sbp").options(
            endpoint=self.sbp.endpoint, stream=sink or self.sink, **options
        )
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        wait_until_over(writer.trigger(availableNow=True).start())

    def fail(self, *args, **options):
        """Run, and see that it fails before it skips a row."""
        before = self.sbp.values(self.sink)
        with pytest.raises(StreamingQueryException, match="Nothing was skipped"):
            self.run(*args, **options)
        assert self.sbp.values(self.sink) == before


@pytest.fixture
def pipeline(sbp, new_streams, client, checkpoint):
    made = Pipeline(sbp, client, new_streams(2), checkpoint)
    for _ in range(2):
        made.add()
        made.run()
    return made


def test_a_rewound_query_fails_until_it_is_told_to_write_again(pipeline, checkpoint):
    rewind = ["checkpoint", "rewind", str(checkpoint), "--to-batch", "0", "--yes"]
    assert main(rewind) == 0
    pipeline.run()  # the same rows under the same number: a repeat
    assert pipeline.sbp.values(pipeline.sink) == numbered(0, 20)
    assert main(rewind) == 0
    pipeline.add()
    for _ in range(2):
        pipeline.fail()
    for _ in range(2):
        pipeline.run(writerGeneration="1")
        assert pipeline.sbp.values(pipeline.sink) == numbered(0, 20) + numbered(10, 30)
        forget_commit(checkpoint)
    pipeline.add()
    pipeline.run(writerGeneration="1")
    assert pipeline.sbp.values(pipeline.sink)[-10:] == numbered(30, 40)


def test_of_two_copies_of_a_checkpoint_the_second_one_fails(pipeline, new_streams, tmp_path):
    (branch,) = new_streams(1)
    shutil.copytree(pipeline.checkpoint, tmp_path / "copy")
    pipeline.add()
    pipeline.run(tmp_path / "copy", branch)
    assert pipeline.sbp.values(branch) == numbered(20, 30)
    pipeline.fail()
    pipeline.run(writerGeneration="7")
    assert pipeline.sbp.values(pipeline.sink) == numbered(0, 30)


def test_a_restored_checkpoint_fails(pipeline, tmp_path):
    shutil.copytree(pipeline.checkpoint, tmp_path / "backup")
    pipeline.add()
    pipeline.run()
    pipeline.add()
    pipeline.fail(tmp_path / "backup")


def test_a_renamed_stream_is_the_same_and_one_created_again_is_not(pipeline, client, checkpoint):
    (info,) = client.describe_streams([pipeline.sink])
    client.update_streams([StreamUpdate(info.stream_id, name=f"{pipeline.sink}-renamed")])
    pipeline.sink = f"{pipeline.sink}-renamed"
    forget_commit(checkpoint)
    pipeline.run()
    assert pipeline.sbp.values(pipeline.sink) == numbered(0, 20)
    client.delete_streams([pipeline.sink])
    client.create_streams([StreamSpec(pipeline.sink)])
    forget_commit(checkpoint)
    pipeline.fail()
