"""`sbp produce`: inputs become rows, which a sender appends. The command is in `command`.

The reader of a format is a generator: of rows in the columns of the stream, or None where no more
input is there now.
"""
