"""The web console: pages that the server makes, of answers that a client of the cluster gets.

Each page is a module and a template of the same name: overview, streams, stream, records, groups,
transactions, servers, login. `health.py` finds the problems that two of them show. Pages share

    site.py       the frame, `get` and `post` for routes, questions, actions done once
    histories.py  rates and lags over time
    tables.py     Iceberg tables of streams
    sorting.py    sorting and pages of tables
    charts.py     pictures, which macros.html draws
    words.py      the filters of the templates

A handler lets SbpErrors pass: `app.py` makes them a page that says what to do. An element with an
id and `data-refresh` is replaced every few seconds by the one with that id in a new copy of the
page. A link with `data-dialog` shows a page as a
dialog: its heading, its form, and its elements with `data-in-dialog`. The rules: every page works
without its script, no style or script is in a page, state is told by words and not by colour alone.
"""
