"""What the subcommands are called, and which options they have.

Nothing here imports what a subcommand needs before it runs, so that `sbp --help` answers at once.
"""
