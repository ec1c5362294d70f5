"""Two thousand damaged files: each is read, or refused by the one documented error, in bounded time."""

from __future__ import annotations

import copy
import json
import random
import sys
import time
import tracemalloc

import pytest

import ptml
from ptml.activations import GELU, PReLU
from ptml.config.folder import CONFIG
from ptml.layers import BatchNorm, Dropout, Linear, Sequential
from ptml.optim import adamw, chain, clip_by_global_norm, warmup_cosine
from ptml_state import ArchiveError, where

HOW_MANY = 2000

JUNK = [
    None,
    True,
    -1,
    0,
    0.5,
    1e308,
    10**3999,
    -(2**64),
    "",
    "os.system",
    "../../etc/passwd",
    "__class__",
    "x" * 10_000,
    "\x00",
    [],
    [[]],
    {},
    {"class": "os.system"},
    {"class": "__import__", "name": "os"},
    {"class": "Sequential", "layers": []},
    {"class": "Sequential", "@id": 7, "layers": [{"@ref": 7}]},
    {"@ref": 1},
    {"@ref": 2},
    {"@ref": 10**30},
    {"@float": "nan"},
    {"@float": "inf"},
    {"@class": "Linear"},
    {"@role": "parameter"},
    {"@where": "**"},
    {"@not": {"@not": "a"}},
    {"@part": "__init__", "@of": {"class": "ReLU"}},
    {"class": "ReLU"},
    {"class": "Chain", "transforms": [{"class": "Adam"}]},
]


def _network():
    tied = Linear("tied", n_in=3, n_out=3)
    return Sequential(
        Linear("fc", n_in=4, n_out=3),
        tied,
        GELU(),
        Dropout("drop", p=0.1),
        Sequential(tied, PReLU()),
        BatchNorm(n_in=3),
    )


def _rule():
    schedule = warmup_cosine(1e-3, total_steps=100, warmup_steps=10)
    return chain(clip_by_global_norm(1.0), adamw(schedule, mask=where("**/W") & ~where("head")))


def _places(value, at=()):
    """Give each container and the key of each of its items."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _damaged_value(rng, config):
    config = copy.deepcopy(config)
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(list(_places(config)))
        other = rng.choice(list(_places(config)))
        match rng.randrange(6):
            case 0 | 1:
                container[key] = copy.deepcopy(rng.choice(JUNK))
            case 2:
                del container[key]
            case 3:
                container[key] = copy.deepcopy(other[0][other[1]])
            case 4 if isinstance(container, dict):
                container[rng.choice([f"{key}x", key[:-1], "@id", "@ref", "class", "name"])] = container.pop(
                    key
                )
            case _:
                for _ in range(rng.choice([1, 5, 60, 200])):
                    container[key] = rng.choice(
                        [[container[key]], {"class": "Sequential", "layers": [container[key]]}]
                    )
    return json.dumps(config).encode()


def _damaged_text(rng, text):
    at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    match rng.randrange(6):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
        case 2:
            return text[:at] + text[to:]
        case 3:
            return text[:to] + text[at:]
        case 4:
            return (
                text[:at]
                + rng.choice([b"[" * 5000, b'{"a":' * 5000, b"9" * 5000, b"NaN", b"1e999", b'"\\ud800"'])
                + text[to:]
            )
        case _:
            return bytes(byte ^ (1 << rng.randrange(8)) if rng.random() < 0.01 else byte for byte in text)


def _damaged(rng, config):
    text = json.dumps(config).encode()
    return _damaged_value(rng, config) if rng.random() < 0.6 else _damaged_text(rng, text)


def test_damaged_files_are_refused_by_name_and_never_half_loaded(tmp_path):
    path = tmp_path / "model"
    net = _network()
    ptml.save_network(net, ptml.init(net, seed=0), path)
    config = json.loads((path / CONFIG).read_text())
    rng = random.Random(0)
    refused, longest = [], 0.0
    for _ in range(HOW_MANY // 2):
        (path / CONFIG).write_bytes(_damaged(rng, config))
        start = time.process_time()
        try:
            again, state = ptml.load_network(path)
        except ptml.ConfigError as error:
            refused.append(str(error))
        else:
            handles = ptml.slots(again)
            assert sorted(handle.slot.shape for handle in handles) == sorted(
                leaf.shape for leaf in state.leaves
            )
        longest = max(longest, time.process_time() - start)
    assert len(refused) > 0.8 * (HOW_MANY // 2)
    assert [text for text in refused if not text.startswith(str(path)) or len(text) > 4000] == []
    assert longest < 5


def test_damaged_rules_are_refused_with_their_place():
    config = ptml.to_config(_rule())
    rng = random.Random(1)
    refused = []
    for _ in range(HOW_MANY // 2):
        try:
            ptml.from_config(_damaged(rng, config))
        except ptml.ConfigError as error:
            refused.append(str(error))
    assert len(refused) > 0.7 * (HOW_MANY // 2)
    assert [text for text in refused if not text.startswith("config: ") or len(text) > 4000] == []


def test_nothing_that_a_file_names_is_imported():
    names = (
        "os.system",
        "subprocess.Popen",
        "antigravity",
        "this",
        "this.s",
        "builtins.exec",
        "Linear.__init__",
    )
    loaded = set(sys.modules)
    for name in names:
        with pytest.raises(ptml.ConfigError, match="there is no class"):
            ptml.from_config({"format": 1, "ptml": "0", "module": {"class": name, "n_in": 1}})
    assert set(sys.modules) == loaded
    assert "this" not in loaded


@pytest.mark.parametrize(
    "text", ["[" * 300_000, '{"a":' * 100_000, "[" + "[]," * 100_000 + "[]]", '"' + "x" * 1_000_000]
)
def test_a_large_file_takes_memory_in_proportion(text):
    tracemalloc.start()
    try:
        with pytest.raises(ptml.ConfigError):
            ptml.from_config(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * len(text)


def test_a_file_beyond_the_bound_is_not_read(tmp_path):
    path = tmp_path / "model"
    net = _network()
    ptml.save_network(net, ptml.init(net, seed=0), path)
    with (path / CONFIG).open("r+b") as file:
        file.truncate(1 << 32)
    with pytest.raises(ptml.ConfigError, match=r"network.json: the file is longer than 16777216 bytes"):
        ptml.load_network(path)


def test_a_damaged_archive_is_refused_by_its_own_error(tmp_path):
    path = tmp_path / "model"
    net = _network()
    ptml.save_network(net, ptml.init(net, seed=0), path)
    archive = path / "state.safetensors"
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(ArchiveError, match="truncated"):
        ptml.load_network(path)
