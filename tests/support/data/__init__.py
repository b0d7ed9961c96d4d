"""Record batches, typed rows and conditions that tests write and read."""
