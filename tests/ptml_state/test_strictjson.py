"""JSON of somebody else's: what is refused, where, and within which bounds."""

from __future__ import annotations

import json
import os
import re
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest

from ptml_state.strictjson import DEEPEST, JSONError, json_text, parse_json, place, read_json, short

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@hypothesis.settings(max_examples=50)
@hypothesis.given(VALUES)
def test_what_is_written_is_read(value):
    text = json_text(value)
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value
    assert json.loads(text) == value


def test_what_fits_into_a_line_stands_in_one():
    long = {"name": "x" * 50, "values": ["y" * 30, "z" * 30]}
    lines = json_text({"short": {"a": [1, 2]}, "long": long}).splitlines()
    assert '  "short": {"a": [1, 2]},' in lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"n": 1, "n": 1}}', r"^b: 'n' is there twice$"),
        ('{"a": [0, {"b": NaN}]}', r"^a\[1\]\.b: NaN is no JSON$"),
        ('{"a": [-Infinity]}', r"^a\[0\]: -Infinity is no JSON$"),
        ('{"a": 1e999}', r"^a: '1e999' is beyond the range of float64$"),
        (
            '{"a b": [1' + "0" * 5000 + "]}",
            r"^\['a b'\]\[0\]: a whole number of 5001 digits is longer than 4000$",
        ),
        ('["\\ud800"]', r"^\[0\]: '\\ud800' has half a character$"),
        ('[{"\\ud800": 1}]', r"^\[0\]: the name '\\ud800' has half a character$"),
        ('{"a": ', r"^the text is no JSON at line 1, column 7: Expecting value$"),
        ("", r"^the text is no JSON at line 1, column 1"),
        ("[1] 2", r"Extra data$"),
        ("[01]", r"^the text is no JSON"),
        ("\ufeff[]", r"BOM"),
        ("[" * 201 + "]" * 201, r"^the text is nested more than 200 deep$"),
        ("[" * 10_000_000, r"^the text is nested more than 200 deep$"),
        ('{"a":' * 100_000, r"^the text is nested more than 200 deep$"),
    ],
)
def test_what_is_refused_is_refused_with_its_place(text, message):
    with pytest.raises(JSONError, match=message):
        parse_json(text)


def test_bytes_are_utf_8():
    assert parse_json('["é"]'.encode()) == ["é"]
    with pytest.raises(JSONError, match="no UTF-8: byte 2 starts no character"):
        parse_json(b'["\xff"]')


def test_the_bounds_are_the_callers():
    assert parse_json("[" * DEEPEST + "]" * DEEPEST) is not None
    with pytest.raises(JSONError, match="nested more than 2 deep"):
        parse_json("[[[1]]]", deepest=2)
    with pytest.raises(JSONError, match="the header is longer than 5 bytes"):
        parse_json("[1, 2]", what="the header", largest=5)


def test_whole_numbers_and_floats_are_exact():
    assert parse_json(str(2**8000)) == 2**8000
    assert parse_json(repr(0.1 + 0.2)) == 0.1 + 0.2
    assert type(parse_json("1.0")) is float
    assert str(parse_json("-0.0")) == "-0.0"


def test_infinity_is_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text([float("inf")])


def test_a_file_is_read_to_its_bound_and_no_further(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(JSONError, match="the file is longer than 1000 bytes"):
            read_json(path, largest=1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_is_no_file_is_not_opened(tmp_path):
    with pytest.raises(JSONError, match="no regular file"):
        read_json(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nothing")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(JSONError, match="no regular file"):
            read_json(tmp_path / "pipe")


def test_places_are_written_as_paths():
    assert place([]) == ""
    assert place(["module", "layers", 2, "n_out"]) == "module.layers[2].n_out"
    assert place([0, "@of", "a.b"]) == "[0].@of['a.b']"
    assert len(place(["x" * 1000])) < 100


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, "an object"),
        ([1], "a list"),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a\n", r"'a\n'"),
    ],
)
def test_values_are_shown_in_few_words(value, text):
    assert short(value) == text


def test_however_long_they_are():
    assert short(10**5000) == f"a number of {(10**5000).bit_length()} bits"
    assert re.fullmatch(r"'x+…", short("x" * 10_000_000))
