"""The web console: pages that the server makes, of what a client of the cluster is told.

A page goes route -> view model -> template, each in its place:

    servers.py              `ROUTES`, and a handler for each: it asks the client of the caller, and
                            calls `Site.page` with the template, the title and the values
    servers_view.py         pure functions: answers of the client -> values that a template shows
    templates/servers.html  extends base.html; parts that pages share are in macros.html

`streams.py` with `streams_view.py` is the example to copy. A handler lets SbpErrors pass: `app.py`
makes them a page that says what to do. An element with an id and `data-refresh` is replaced every
few seconds by the one with that id in a new copy of the page. An action has a page that asks, a
`Question` of actions.py, whose link has `data-ask`, and a POST that acts once, by `act`.
The rules: every page works without its script, no style or script is in a page, state is told by
words and not by colour alone.
"""
