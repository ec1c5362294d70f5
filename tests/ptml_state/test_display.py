from __future__ import annotations

import re

import numpy as np
import pytest

from ptml_state import Leaf, Role, State
from ptml_state.display import bytes_text


def several() -> State:
    return State.of(
        [
            Leaf("block0/attn/W", np.zeros((4, 4), "float32"), uses=3),
            Leaf("block0/attn/b", np.zeros(4, "float32")),
            Leaf("block0/fc/W", np.zeros((100, 200), "float32")),
            Leaf("drop/key", np.zeros(3, "uint32"), Role.GENERATOR),
            Leaf("adam/step_count", np.int64(0), Role.CLOCK),
        ]
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (34_512, "34.5 kB"),
        (999_999, "1.0 MB"),
        (2_400_000_000, "2.4 GB"),
        (5_000_000_000_000, "5,000.0 GB"),
    ],
)
def test_bytes_are_written_for_people(count, text):
    assert bytes_text(count) == text


def test_a_state_prints_as_a_tree_with_totals():
    assert str(several()) == (
        "block0\n"
        "  attn\n"
        "    W            parameter  float32[4,4]         64 B  shared ×3\n"  # noqa: RUF001 as printed
        "    b            parameter  float32[4]           16 B\n"
        "  fc/W           parameter  float32[100,200]  80.0 kB\n"
        "drop/key         generator  uint32[3]            12 B\n"
        "adam/step_count  clock      int64[]               8 B\n"
        "\n"
        "parameter  3 leaves  20,020 numbers  80.1 kB\n"
        "generator    1 leaf       3 numbers     12 B\n"
        "clock        1 leaf        1 number      8 B\n"
        "total      5 leaves  20,024 numbers  80.1 kB"
    )


def test_a_long_state_prints_whole_and_has_a_short_repr():
    state = State({f"fc{k}/W": np.zeros(2) for k in range(200)})
    assert str(state).count("float64[2]") == 200
    assert repr(state) == "State(200 leaves, 3.2 kB: fc0/W float64[2], fc1/W float64[2], fc2/W float64[2], …)"


def test_a_state_without_leaves_says_so():
    assert str(State({})) == "State without leaves"
    assert repr(State({})) == "State(no leaves)"


def test_statistics_are_of_the_finite_numbers():
    values = {
        "a": np.array([1.0, 3.0, 0.0, 0.0, np.nan, np.inf]),
        "none": np.full(2, np.nan),
        "empty": np.zeros(0),
        "on": np.array([True, False, False, False]),
    }
    lines = State(values).table(statistics=True).splitlines()
    assert lines[0].split() == ["mean", "std", "min", "max", "zeros", "not", "finite"]
    std = np.std([1.0, 3.0, 0.0, 0.0])
    assert lines[1].split()[-6:] == ["1.000", f"{std:.4g}", "0.000", "3.000", "33%", "2"]
    assert lines[2].split()[-2:] == ["0%", "2"]
    assert lines[3].split() == ["empty", "parameter", "float64[0]", "0", "B"]
    assert lines[4].split()[-6:] == ["0.2500", "0.4330", "0.000", "1.000", "75%", "0"]


def test_statistics_of_half_precision_do_not_overflow():
    line = State({"a": np.full(100, 60000, "float16")}).table(statistics=True).splitlines()[1]
    assert line.split()[-6:-4] == ["6.000e+04", "0.000"]


def test_a_notebook_gets_a_table_with_escaped_addresses():
    text = State({"<b>": {"W": [1.0], "b": [2.0]}})._repr_html_()
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert len(re.findall("<tr>", text)) == len(re.findall("</tr>", text)) == 1 + 3 + 1
    assert "float64[1]" in text


def test_a_diff_prints_what_differs():
    before = State({"fc1/W": [1.0, 2.0], "fc1/b": [0.0], "old": 1.0})
    after = State({"fc1/W": [1.0, 2.5], "fc1/b": [0.0, 0.0], "new": 1.0})
    assert repr(before.diff(after)) == str(before.diff(after))
    assert str(before.diff(after)) == (
        "1 added, 1 removed, 1 reshaped, 1 changed\n"
        "  added     new\n"
        "  removed   old\n"
        "  reshaped  fc1/b  float64[1] → float64[2]\n"
        "  changed   fc1/W  by up to 0.5"
    )
    assert str(before.diff(before)) == "no differences"
