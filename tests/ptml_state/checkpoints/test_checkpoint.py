"""One checkpoint: what is in it, and how every damage to it shows."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess

import numpy as np
import pytest

from ptml_state import Checkpointer, CheckpointError, Role, State, load_state
from ptml_state.checkpoints.checkpoint import plain, read_checkpoint

STATE = State({"fc/W": np.arange(6.0).reshape(2, 3), "adam/step_count": np.int64(7)}, {"adam": Role.CLOCK})
FILES = ("state.safetensors", "checkpoint.json", "SHA256SUMS")


@pytest.fixture
def folder(tmp_path):
    """Give the folder of one checkpoint."""
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.save(7, STATE, {"note": "ü", "losses": [0.1, math.inf]}, metric=0.5)
    return tmp_path / "000001-step-7"


def redescribe(folder, content):
    """Write another description, with the right checksum."""
    (folder / "checkpoint.json").write_bytes(content)
    sums = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("state.safetensors", "checkpoint.json")
    ]
    (folder / "SHA256SUMS").write_text("".join(sums))


def test_a_checkpoint_is_a_folder_that_anybody_can_read(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert load_state(folder / "state.safetensors") == STATE
    about = json.loads((folder / "checkpoint.json").read_text())
    assert about.pop("run")
    assert about == {
        "format": 1,
        "step": 7,
        "metric": 0.5,
        "extra": {"note": "ü", "losses": [0.1, math.inf]},
        "position": None,
    }
    for name in FILES[:2]:
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert f"{digest}  {name}\n" in (folder / "SHA256SUMS").read_text()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_sha256sum_checks_a_checkpoint(folder):
    def check():
        return subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)

    assert check().returncode == 0
    (folder / "state.safetensors").write_bytes(b"")
    assert check().returncode != 0


def test_reading_a_checkpoint_gives_what_was_saved(folder):
    found = read_checkpoint(folder)
    assert (found.path, found.step, found.metric, found.position) == (folder, 7, 0.5, None)
    assert found.extra == {"note": "ü", "losses": [0.1, math.inf]}
    state = found.restore()
    assert state == STATE
    assert state.roles == STATE.roles


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_found(folder, name):
    whole = (folder / name).read_bytes()
    rng = np.random.default_rng(0)
    for position in sorted({0, len(whole) - 1, *rng.integers(len(whole), size=150).tolist()}):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << int(rng.integers(8))
        (folder / name).write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"step-7 is broken: .*(checksum differs|is damaged)"):
            read_checkpoint(folder).verify()


@pytest.mark.parametrize("name", FILES)
def test_any_cut_is_found(folder, name):
    whole = (folder / name).read_bytes()
    for length in {0, 1, len(whole) // 2, len(whole) - 1}:
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"step-7 is broken: .*(checksum differs|is damaged)"):
            read_checkpoint(folder).verify()
    (folder / name).write_bytes(whole + b"\n")
    with pytest.raises(CheckpointError, match=r"step-7 is broken: .*(checksum differs|is damaged)"):
        read_checkpoint(folder).verify()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_or_none_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"000001-step-7 is broken: it has no {name}"):
        read_checkpoint(folder).verify()
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=r"is broken: it cannot be read \(Is a directory\)"):
        read_checkpoint(folder).verify()


def test_a_folder_that_is_not_there_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere is broken: there is no such folder"):
        read_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        b"\xff\xfe",
        b'{"format": "1"}',
        b'{"format": 1, "step": 3}',
        b'{"format": 1, "step": 3, "metric": null, "extra": 0, "position": 0, "run": "a", "path": "/etc"}',
        b'{"format": 1, "step": 3, "metric": null, "extra": 0, "position": 0, "run": "a", "more": 1}',
        b"[" * 200_000,
    ],
)
def test_a_description_that_is_none_is_refused(folder, content):
    redescribe(folder, content)
    with pytest.raises(CheckpointError, match=r"step-7 is broken: checkpoint\.json does not describe a c"):
        read_checkpoint(folder)


def test_a_later_format_asks_for_an_update(folder):
    about = json.loads((folder / "checkpoint.json").read_text())
    redescribe(folder, json.dumps({**about, "format": 2, "new": 1}).encode())
    with pytest.raises(CheckpointError, match=r"is of format 2, and this version reads up to format 1\."):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "sums", ["", "0\n", "0" * 64 + "  ../../etc/passwd\n" + "0" * 64 + "  checkpoint.json\n"]
)
def test_checksums_of_other_files_are_damage(folder, sums):
    (folder / "SHA256SUMS").write_text(sums)
    with pytest.raises(CheckpointError, match="SHA256SUMS is damaged"):
        read_checkpoint(folder)


def test_whoever_may_not_read_is_told_so(folder, monkeypatch):
    def refuse(self, *options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(PermissionError, match="SHA256SUMS"):
        read_checkpoint(folder)


def test_extras_come_back_as_plain_values():
    value = {"a": (1, 2.5, None), "b": {"c": [True, "x"]}, "d": np.float64(0.1)}
    copied = plain(value, "extra")
    assert copied == {"a": [1, 2.5, None], "b": {"c": [True, "x"]}, "d": 0.1}
    assert type(copied["d"]) is float
    assert json.loads(json.dumps(copied)) == copied
    value["b"]["c"].append("later")
    assert copied["b"]["c"] == [True, "x"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, np.float32(1)]}, r"extra\['a'\]\[1\] is .*\(float32\), which JSON cannot hold\. Write"),
        ({"a": {"b": np.zeros(2)}}, r"extra\['a'\]\['b'\] is .*\(ndarray\), which .* arrays belong"),
        ({"a": {3: 1}}, r"extra\['a'\] has the key 3 \(int\); keys in JSON are strings: '3'"),
        ({1, 2}, r"extra is \{1, 2\} \(set\), which JSON cannot hold"),
    ],
)
def test_an_extra_that_json_cannot_hold_is_named(value, message):
    with pytest.raises(TypeError, match=message):
        plain(value, "extra")
