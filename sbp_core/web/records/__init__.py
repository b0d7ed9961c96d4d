"""Records over HTTP: `/v1/...`, for programs without a library.

app.py         the application of FastAPI: routes, their description, requests without a route
requests.py    the dependencies of handlers, and checks before FastAPI's own
bodies.py      receiving a body: its size, compression, and the memory of all of them
contents.py    a body as rows: JSON lines, Arrow (arrow_contents.py), text, bytes
appending.py   POST: a request is one record batch, so it is appended as a whole or not at all
reading.py     GET: records up to an end that is known before the answer begins
fetching.py    positions, the records from there, and the forms in which answers have them
tailing.py     GET: records as they come, as server-sent events
streams.py     streams, and cursors of groups
"""
