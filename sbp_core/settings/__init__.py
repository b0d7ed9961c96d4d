"""The settings of the servers, each declared once.

A field of a class of `listening`, `server_settings`, `quotas` or `configuration` is a setting. From
its declaration follow the check of its value, its key in the configuration file, its option on the
command line, docs/reference/configuration.md and the files in conf/. These modules import little,
so that `sbp serve --help` answers at once.
"""
