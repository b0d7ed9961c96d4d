"""The `sbp` command. Read `main` first, then the file of a subcommand."""
