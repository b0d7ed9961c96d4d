"""What `sbp produce` is made of: inputs that become rows, and the sender of these rows.

The reader of a format is a generator: of rows in the columns of the stream, or None where no more
input is there now.
"""
