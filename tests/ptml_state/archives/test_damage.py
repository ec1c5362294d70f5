"""Two thousand damaged archives: each loads whole, or is refused by name, in little time and memory."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptml_state import ArchiveError, Leaf, Role, State, inspect, load_state, save_state
from ptml_state.leaf import Numbered

HUGE = [2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -1, -(2**63), 0, 1.5, 1e300, True, None, "3", [3], {}]
NAMES = [
    "", "/", "a//b", "/fc/W", "fc/W/", "../../etc/passwd", "..", "C:\\fc", "fc\x00W", "fc/W/x", "fc",
    "\ud800", "é" * 500, "__metadata__", "x" * 100_000, "__class__", "os.system",
]  # fmt: skip
DTYPES = [
    "F8",
    "f64",
    "float64",
    "F128",
    "O",
    "",
    "BF16",
    "F16",
    "I64",
    "U8",
    "C128",
    3,
    None,
    ["F64"],
    "F64 ",
]


def whole() -> State:
    layer = Numbered("Linear_1", "Linear(n_in=2, n_out=3)")
    return State.of(
        [
            Leaf("fc/W", np.arange(12.0).reshape(3, 4), owner="Linear"),
            Leaf("Linear_1/W", np.ones((2, 3), "float32"), owner="Linear", uid="0a", layer=layer),
            Leaf("bn/running_mean", np.ones(3), Role.STATISTIC, uses=2),
            Leaf("drop/key", np.array([1, 2, 3, 4], "uint32"), Role.GENERATOR),
            Leaf("adam/step_count", np.int64(7), Role.CLOCK),
            Leaf("half", np.ones(5, "float16")),
            Leaf("empty", np.zeros((0, 3))),
            Leaf("mask", np.array([True, False])),
        ]
    )


def taken_apart(content: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def put_together(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    end = rng.choice([8, 300, len(changed)])
    for _ in range(rng.choice([1, 1, 3, 30])):
        changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def spliced(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    middle = rng.randbytes(rng.choice([0, 1, 7, 64]))
    return content[:start] + middle + content[start + rng.choice([0, 1, 7, 64]) :]


def other_length(content: bytes, rng: random.Random) -> bytes:
    length = rng.choice([0, 1, 7, len(content), len(content) - 8, 2**27, 2**40, 2**63, 2**64 - 1])
    return length.to_bytes(8, "little") + content[8:]


def other_entry(content: bytes, rng: random.Random) -> bytes:
    header, data = taken_apart(content)
    entry = header[rng.choice([name for name in header if name != "__metadata__"])]
    match rng.randrange(5):
        case 0:
            entry["shape"] = [rng.choice(HUGE) for _ in range(rng.choice([0, 1, 2, 40]))]
        case 1:
            entry["data_offsets"] = [
                rng.choice([*HUGE, *range(0, 300, 8)]) for _ in range(rng.choice([1, 2, 2, 3]))
            ]
        case 2:
            entry["dtype"] = rng.choice(DTYPES)
        case 3:
            del entry[rng.choice(list(entry))]
        case 4:
            entry[rng.choice(list(entry))] = rng.choice(HUGE)
    return put_together(header, data)


def other_name(content: bytes, rng: random.Random) -> bytes:
    header, data = taken_apart(content)
    old, new = rng.choice([name for name in header if name != "__metadata__"]), rng.choice(NAMES)
    if rng.random() < 0.5:
        return put_together(json.dumps(header).replace(json.dumps(old), json.dumps(new)).encode(), data)
    return put_together({new if name == old else name: entry for name, entry in header.items()}, data)


def twice(content: bytes, rng: random.Random) -> bytes:
    header, data = taken_apart(content)
    name = rng.choice(list(header))
    pair = f"{json.dumps(name)}: {json.dumps(rng.choice(list(header.values())))}"
    return put_together(f"{{{pair}, {json.dumps(header)[1:]}".encode(), data)


def nested(content: bytes, rng: random.Random) -> bytes:
    header, data = taken_apart(content)
    depth = rng.choice([100, 10_000, 500_000])
    deep = rng.choice(["[" * depth, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])
    match rng.randrange(3):
        case 0:
            return put_together(deep.encode(), data)
        case 1:
            return put_together(json.dumps(header).encode()[:-1] + f', "x": {deep}}}'.encode(), data)
        case _:
            header["__metadata__"][rng.choice(["ptml_state.leaves", "ptml_state.layers"])] = deep
            return put_together(header, data)


def other_metadata(content: bytes, rng: random.Random) -> bytes:
    header, data = taken_apart(content)
    texts = header["__metadata__"]
    name = rng.choice(list(texts))
    match rng.randrange(6):
        case 0:
            texts[name] = rng.choice(
                ["", "9", "-1", "1e9", "9" * 5000, "٣", "null", "[]", "{}", "[[]]", "[null]", "NaN"]
            )
        case 1:
            del texts[name]
        case 2:
            texts[name] = rng.choice([None, 3, [], {"a": "b"}])
        case 3:
            rows = json.loads(texts["ptml_state.leaves"])
            row = rng.choice(rows)
            row[rng.choice([*row, "uses", "uid", "layer", "owner"])] = rng.choice([*HUGE, *NAMES, "clock"])
            texts["ptml_state.leaves"] = json.dumps(rng.choice([rows, rows[1:], rows + rows[:1]]))
        case 4:
            texts["note"] = "x" * rng.choice([10, 2_000_000])
        case 5:
            header["__metadata__"] = rng.choice([None, [], "text", 3, {"a": {}}])
    return put_together(header, data)


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    cut, flipped, flipped, spliced, other_length, other_entry, other_entry, other_name, twice, nested,
    other_metadata,
]  # fmt: skip


def outcome(load: Callable[[Path], Any], path: Path) -> tuple[Any, str | None]:
    """Give what loading gives, or why it is refused; any other error is one."""
    try:
        return load(path), None
    except ArchiveError as error:
        return None, str(error)


@pytest.mark.skipif(sys.platform == "win32", reason="files that are mapped stay on Windows")
def test_damaged_archives_load_whole_or_are_refused_by_name(tmp_path):
    good = tmp_path / "good"
    save_state(whole(), good)
    content, rng = good.read_bytes(), random.Random(0)
    start, held = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded, reasons = 0, set()
    for number in range(2000):
        damage = rng.choice(DAMAGES)
        path = tmp_path / f"damaged-{number}"
        path.write_bytes(damage(content, rng))
        for load in (load_state, inspect, lambda path: load_state(path, like=whole())):
            result, reason = outcome(load, path)
            if reason is not None:
                assert str(path) in reason, f"{damage.__name__} {number}"
                assert len(reason) < 400_000
                reasons.add(reason.partition(str(path))[2][:40])
            else:
                loaded += 1
                if isinstance(result, State):  # whole, down to the last array
                    assert len(result) == len(inspect(path).leaves)
                    assert all(np.asarray(array).tobytes() is not None for array in result.values())
        path.unlink()
    assert 100 < loaded < 3000
    assert len(reasons) > 25
    assert time.perf_counter() - start < 20
    # In kB on Linux: what the largest of the files takes, a few times over.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 300_000


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="pipe is no regular file, and so no archive"):
        load_state(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda h: h["fc/W"].update(dtype="F32"), r"'fc/W' of float32 and shape \[3, 4\] does not"),
        (lambda h: h["fc/W"].update(shape=[2**62, 2**62]), "'fc/W' of float64 and shape .* does not"),
        (lambda h: h["fc/W"].update(shape=[-3, -4]), "the shape of 'fc/W' is no list of up to 32 sizes"),
        (lambda h: h["fc/W"].update(data_offsets=[96, 0]), "the data_offsets of 'fc/W' are no two"),
        (lambda h: h["fc/W"].update(data_offsets=[8, 104]), "'fc/W' does not start where the array be"),
        (lambda h: h["empty"].update(shape=[0, 2**62, 2**62]), "the shape of 'empty' is larger than any mem"),
        (lambda h: h["fc/W"].pop("dtype"), "of 'fc/W' it does not say dtype, shape and data_offsets"),
        (lambda h: h["fc/W"].update(dtype=3), "the dtype of 'fc/W' is no text"),
        (lambda h: h.update(__metadata__={"a": 1}), "its metadata are no texts by name"),
        (lambda h: h.update({"\ud800": h.pop("fc/W")}), r"the name '\\ud800' is no text"),
    ],
)  # fmt: skip
def test_a_header_that_lies_is_told_what_about(tmp_path, change, text):
    path = tmp_path / "lies"
    save_state(whole(), path)
    header, data = taken_apart(path.read_bytes())
    change(header)
    path.write_bytes(put_together(header, data))
    with pytest.raises(ArchiveError, match=f"lies is no whole safetensors file: {text}"):
        load_state(path)


def test_a_name_that_is_there_twice_is_told(tmp_path):
    path = tmp_path / "twice"
    save_state(State({"a": 1.0}), path)
    header, data = taken_apart(path.read_bytes())
    path.write_bytes(
        put_together(f'{{"a": {json.dumps(header["a"])}, {json.dumps(header)[1:]}'.encode(), data)
    )
    with pytest.raises(ArchiveError, match="twice is no whole safetensors file: its header names 'a' twice"):
        load_state(path)
