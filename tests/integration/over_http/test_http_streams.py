"""Streams, cursors and the description of the API over HTTP."""

from openapi_spec_validator import validate

from tests.support.web import lines, names, post, problem

LATIN = {"Content-Type": "application/json; charset=latin-1"}


def test_streams(http):
    path = f"/v1/streams/{next(names)}"
    made = http.put(path, json={"retention_period_ms": 60_000, "retention_bytes": 1 << 30})
    assert made.status_code == 201
    assert made.json()["retention_period_ms"] == 60_000
    assert http.put(path).status_code == 200
    changed = http.put(path, json={"retention_bytes": 0})
    assert (changed.status_code, changed.json()["retention_bytes"]) == (200, 0)
    found = http.get(path).json()
    assert (found["first_offset"], found["next_offset"], found["columns"]) == (0, 0, None)
    assert http.get(f"/v1/streams/{found['stream_id']}").json() == found
    listed = http.get("/v1/streams").json()["streams"]
    assert found["stream"] in [each["stream"] for each in listed]
    for wrong in (b"[]", b'{"retention": 1}', b'{"replica_count": 0}', b"{", b"[" * 99_999):
        problem(http.put(path, content=wrong), 422, "wrong-body")
    problem(http.put(path, content=b'{"columns": null, "columns": null}'), 422, "wrong-body")
    problem(http.put(path, json={"retention_bytes": 2.5}), 422, "wrong-body")
    assert http.put(path, json={"retention_bytes": 2.0}).json()["retention_bytes"] == 2
    assert http.put(path, content=b"{}", headers=LATIN).status_code == 415
    assert http.delete(path).status_code == 204
    problem(http.get(path), 404, "not-found")
    problem(http.delete(path), 404, "not-found")
    problem(http.put("/v1/streams/999999"), 404, "not-found")
    assert http.put("/v1/streams/a%20b").status_code == 400


def test_properties(http):
    path = f"/v1/streams/{next(names)}"
    made = http.put(path, json={"properties": {"a": "1", "b": None}})
    assert (made.status_code, made.json()["properties"]) == (201, {"a": "1"})
    change = {
        "properties": {"a": None, "c": "\u00e9"},
        "expected_properties": {"a": "1", "c": None},
    }
    assert http.put(path, json=change).json()["properties"] == {"c": "\u00e9"}
    failed = problem(http.put(path, json={**change, "retention_bytes": 9}), 412, "condition-failed")
    assert "a is not there, and '1' was expected" in failed["detail"]
    found = http.get(path).json()
    assert (found["properties"], found["retention_bytes"]) == ({"c": "\u00e9"}, 0)
    problem(http.put(path, json={"properties": {"a b": ""}}), 400, "configuration")
    problem(http.put(path, json={"properties": {"a": 1}}), 422, "wrong-body")
    unknown = f"/v1/streams/{next(names)}"
    problem(http.put(unknown, json={"expected_properties": {"a": None}}), 404, "not-found")
    listed = http.get("/v1/streams").json()["streams"]
    assert not any("properties" in each for each in listed)


def test_a_schema_is_made_and_grows(http):
    path, columns = f"/v1/streams/{next(names)}", ["id int64 not null", "tags list<string>"]
    made = http.put(path, json={"columns": columns})
    assert (made.status_code, made.json()["columns"]) == (201, columns)
    wider = [*columns, "price decimal(10, 2)"]
    changed = http.put(path, json={"columns": wider})
    assert (changed.json()["columns"], changed.json()["schema_version"]) == (wider, 2)
    assert post(http, path, lines({"id": 1, "price": "1.50"}))[0] == 200
    problem(http.put(path, json={"columns": ["id string"]}), 422, "schema")
    problem(http.put(path, json={"columns": ["id"]}), 422, "schema")
    assert http.get(path).json()["columns"] == wider


def test_cursors(http, stream):
    name, path = stream.rpartition("/")[2], f"/v1/groups/{next(names)}/cursors"
    assert http.get(path).json()["cursors"] == []
    assert post(http, stream, lines(*[{}] * 7))[0] == 200
    body = {"cursors": [{"stream": name, "next_offset": 7}]}
    assert http.put(path, json=body).status_code == 200
    (cursor,) = http.get(path).json()["cursors"]
    assert (cursor["stream"], cursor["next_offset"]) == (name, 7)
    body = {"cursors": [{"stream": name, "next_offset": None}]}
    assert http.put(path, json=body).json()["cursors"] == []
    beyond = http.put(path, json={"cursors": [{"stream": name, "next_offset": 8}]})
    assert "0 to 7, exclusive" in problem(beyond, 422, "cursor-beyond-tail")["detail"]
    assert http.get(path).json()["cursors"] == []
    twice = {"cursors": [{"stream": name, "next_offset": 1}] * 2}
    assert http.put(path, json=twice).status_code == 400
    unknown = {"cursors": [{"stream": "nope", "next_offset": 1}]}
    problem(http.put(path, json=unknown), 404, "not-found")


def test_the_description_is_valid_and_names_what_the_routes_accept(http, stream):
    description = http.get("/v1/openapi.json").json()
    validate(description)
    for path in ("/", "/v1/nothing"):
        assert "GET /v1/openapi.json" in problem(http.get(path), 404, "not-found")["detail"]
    for path, methods in description["paths"].items():
        filled = path.format(stream=stream.rpartition("/")[2], group="g")
        answer = http.request("PATCH", filled)
        problem(answer, 405, "method-not-allowed")
        allowed = {each.strip().lower() for each in answer.headers["allow"].split(",")}
        assert allowed - {"head"} == set(methods)
        assert ("head" in allowed) == ("get" in methods)
        for method, operation in methods.items():
            if method != "delete":
                check_contents(http, method, filled, operation)


def check_contents(http, method, path, operation):
    """Check that exactly the contents are accepted that an operation is described with."""
    described = set(operation.get("requestBody", {}).get("content", {}))
    if "application/x-ndjson" in described:
        for kind in (*described, "application/json", "image/png"):
            answer = http.request(method, path, content=b"", headers={"Content-Type": kind})
            assert (answer.status_code == 415) == (kind not in described)
    wrong = http.request(method, path, params={"surplus": "1"})
    assert wrong.status_code == 400
    for each in operation.get("parameters", ()):
        if each["in"] == "query":
            assert each["name"] in wrong.json()["detail"]
