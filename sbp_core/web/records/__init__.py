"""Records over HTTP: `/v1/...`, for programs without a library.

api.py             the application of FastAPI: routes, their description, requests without a route
requests.py        receiving bodies, the dependencies of handlers, and checks before FastAPI's own
contents.py        a body as rows: JSON lines, Arrow, text, bytes
post_records.py    POST: a request is one record batch, so it is appended as a whole or not at all
get_records.py     GET: records up to an end that is known before the answer begins
record_answers.py  positions, the records from there, the forms of answers, and tails
stream_routes.py   streams, and cursors of groups
"""
