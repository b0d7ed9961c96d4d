"""Every header vector: read in all sorts of pieces, written again, and agreed with by flatc."""

import json
import subprocess
from pathlib import Path

import pytest
from vector_json import feedings, from_json, to_json

from sbp_core.errors import HeaderError
from sbp_core.wire import headers
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import REQUEST_TABLES, RESPONSE_TABLES, decode_header, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.tables import encode_officially, needs_flatc

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "schemas" / "headers.fbs"
VECTORS = json.loads((Path(__file__).parent / "vectors" / "headers.json").read_text("utf-8"))
VALID, INVALID = VECTORS["valid"], VECTORS["invalid"]
LAYOUTS_OF_VECTORS = ("hex", "hex_written")


def test_there_is_a_vector_for_every_operation():
    tables = {table.__name__ for table in (*REQUEST_TABLES.values(), *RESPONSE_TABLES.values())}
    assert tables <= {vector["table"] for vector in VALID}


def test_headers_are_read_in_whatever_pieces_they_come():
    for vector in VALID:
        expected = from_json(vector["table"], vector["value"])
        for layout in LAYOUTS_OF_VECTORS:
            data = bytes.fromhex(vector[layout])
            framed = b"".join(encode_frame(Opcode.FETCH, Flag.REQUEST, 1, data))
            for pieces in feedings(framed):
                decoder, found = FrameDecoder(), []
                for piece in pieces:
                    decoder.receive_data(piece)
                    found += list(decoder.frames())
                (frame,) = found
                assert decode_header(type(expected), frame.header) == expected, vector["name"]
            assert decode_header(type(expected), data + bytes(8)) == expected, vector["name"]


def test_headers_are_written_to_the_same_bytes():
    for vector in VALID:
        value = from_json(vector["table"], vector["value"])
        assert encode_header(value).hex() == vector["hex_written"], vector["name"]
        assert encode_officially(LAYOUTS, value).hex() == vector["hex"], vector["name"]
        assert to_json(value) == vector["value"], vector["name"]


@pytest.mark.parametrize("vector", INVALID, ids=lambda vector: vector["name"])
def test_invalid_headers_are_refused(vector):
    with pytest.raises(HeaderError, match=vector["message"]):
        decode_header(getattr(headers, vector["table"]), bytes.fromhex(vector["hex"]))


def test_headers_that_are_cut_off_are_refused_or_read_as_far_as_they_go():
    for vector in VALID[::2]:
        table = getattr(headers, vector["table"])
        for layout in LAYOUTS_OF_VECTORS:
            data = bytes.fromhex(vector[layout])
            whole = decode_header(table, data)
            refused_count = 0
            for length in range(len(data) - 4):
                try:
                    assert decode_header(table, data[:length]) != whole, vector["name"]
                except HeaderError:
                    refused_count += 1
            assert refused_count > len(data) // 2, vector["name"]


def flatc(folder, *options):
    subprocess.run(["flatc", "-o", folder, *options], check=True, cwd=folder, capture_output=True)


@needs_flatc
@pytest.mark.parametrize("table", sorted({vector["table"] for vector in VALID}))
def test_flatc_agrees_both_ways(table, tmp_path):
    vectors = [vector for vector in VALID if vector["table"] == table]
    root = ["--root-type", f"sbp.{table}"]
    for number, vector in enumerate(vectors):
        (tmp_path / f"ours{number}.bin").write_bytes(bytes.fromhex(vector["hex_written"]))
        (tmp_path / f"theirs{number}.json").write_text(json.dumps(vector["value"]), "utf-8")
    ours = [f"ours{number}.bin" for number in range(len(vectors))]
    theirs = [f"theirs{number}.json" for number in range(len(vectors))]
    strict = ["--json", "--strict-json", "--natural-utf8", "--raw-binary"]
    flatc(tmp_path, *strict, *root, SCHEMA, "--", *ours)
    flatc(tmp_path, "--binary", *root, SCHEMA, *theirs)
    for number, vector in enumerate(vectors):
        assert json.loads((tmp_path / f"ours{number}.json").read_text("utf-8")) == vector["value"]
        data = (tmp_path / f"theirs{number}.bin").read_bytes()
        expected = from_json(table, vector["value"])
        assert decode_header(type(expected), data) == expected
