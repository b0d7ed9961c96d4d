"""Records over HTTP: `/v1/...`, for programs without a library.

declaring.py   what an operation is: method, path, parameters, contents, answers
openapi.py     the description of the API, from these declarations
bodies.py      receiving a body: its size, compression, and the memory of all of them
contents.py    a body as rows: JSON lines, Arrow, text, bytes
appending.py   POST: a request is one record batch, so it is appended as a whole or not at all
reading.py     GET: records up to an end that is known before the answer begins
tailing.py     GET: records as they come, as server-sent events
streams.py     streams, and cursors of groups
app.py         the application
"""
