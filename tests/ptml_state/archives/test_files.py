"""The file itself: how it is written, looked into and mapped."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ptml_state import ArchiveError, Leaf, Role, State, inspect, load_report, load_state, save_state
from ptml_state.archives.header import header_bytes
from ptml_state.leaf import Numbered


def test_halves_of_both_kinds_and_empty_and_scalar_arrays_come_back(tmp_path):
    state = State(
        {
            "brain": np.array([[0.1, -3e38], [np.inf, np.nan]], ml_dtypes.bfloat16),
            "half": np.array([0.1, 65504, np.nan], "float16"),
            "none": np.zeros((2, 0), ml_dtypes.bfloat16),
            "scalar": np.array(1.5, ml_dtypes.bfloat16),
            "complex": np.array([1 + 2j], "complex64"),
        }
    )
    for mapped in (True, False):
        save_state(state, tmp_path / "halves")
        assert load_state(tmp_path / "halves", mapped=mapped) == state
    assert load_file(tmp_path / "halves")["brain"].tobytes() == state["brain"].tobytes()


def test_bfloat16_without_ml_dtypes_says_what_to_install(tmp_path, monkeypatch):
    save_state(State({"a": np.ones(2, ml_dtypes.bfloat16)}), tmp_path / "brain")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(
        ArchiveError, match=r"brain has an array .* 'a' is bfloat16, .* pip install ml_dtypes"
    ):
        load_state(tmp_path / "brain")


def test_arrays_lie_at_multiples_of_their_width_and_those_that_do_not_are_copied(tmp_path):
    state = State({"a": np.ones(3, "int8"), "b": np.ones(3), "c": np.ones(3, "float16"), "d": 1 + 0j}).astype(
        "complex64", "d"
    )
    save_state(state, tmp_path / "ours")
    assert all(array.flags.aligned for array in load_state(tmp_path / "ours").values())
    text = (
        b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},'
        b'"b":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}}'
    )
    numbers = np.array([1.5, 2.5])
    content = len(text).to_bytes(8, "little") + text + b"\1" + numbers.tobytes()
    (tmp_path / "odd").write_bytes(content)
    odd = load_state(tmp_path / "odd")["b"]
    assert odd.flags.aligned
    np.testing.assert_array_equal(odd, numbers)


def test_looking_into_a_file_shows_all_but_the_values(tmp_path):
    path = tmp_path / "model.safetensors"
    save_state(
        State.of(
            [
                Leaf("fc/W", np.ones((2, 3), "float32"), owner="Linear", uses=2),
                Leaf("bn/running_mean", np.ones(3), Role.STATISTIC),
            ]
        ),
        path,
        revision=4,
    )
    archive = inspect(path)
    assert [leaf.address for leaf in archive.leaves] == ["fc/W", "bn/running_mean"]
    first = archive.leaves[0]
    assert (first.role, first.owner, first.uses, first.dtype, first.shape, first.nbytes) == (
        Role.PARAMETER, "Linear", 2, np.dtype("float32"), (2, 3), 24,
    )  # fmt: skip
    assert (archive.format, archive.revision, archive.nbytes, archive.metadata) == (2, 4, 48, {})
    assert repr(archive).startswith("model.safetensors: format 2, written by version ")
    assert "revision 4\nfc/W             parameter  float32[2,3]  24 B  shared" in repr(archive)
    save_file({"fc.weight": np.ones(2)}, path, {"format": "pt"})
    assert "a safetensors file of somebody else's" in repr(inspect(path))
    assert inspect(path).metadata == {"format": "pt"}


def sparse(path, leaves: int, numbers: int) -> None:
    """Write the archive of some leaves of zeros without writing the zeros."""
    arrays = {f"layer{k}/W": np.broadcast_to(np.float32(0), (numbers,)) for k in range(leaves)}
    content, _ = header_bytes(arrays, {})
    with path.open("wb") as file:
        file.write(content)
        file.truncate(len(content) + leaves * numbers * 4)


# ru_maxrss starts at what the parent held.
HELD = """
def held():
    with open("/proc/self/status") as lines:
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
"""
PEAK = f"""{HELD}
import sys
from ptml_state import inspect, load_state
load_state(sys.argv[1])
before = held()
inspect(sys.argv[1]), load_state(sys.argv[1])
state = load_state(sys.argv[1], where="layer3")
float(state["layer3/W"].sum())
print(held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_loading_one_layer_of_a_large_file_touches_that_layer_alone(tmp_path):
    sparse(tmp_path / "large", 16, 8_000_000)  # 512 MB in all, 32 MB each
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK, str(tmp_path / "large")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 30_000 < int(done.stdout) < 1.5 * 32_000


SAVE_PEAK = f"""{HELD}
import sys
import numpy as np
from ptml_state import State, save_state
state = State({{f"layer{{k}}/W": np.ones(2_000_000) for k in range(4)}})
save_state(state.select("layer0"), sys.argv[1])
before = held()
save_state(state, sys.argv[1])
print(held() - before, state.nbytes // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_saving_takes_no_memory_beside_the_state(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SAVE_PEAK, str(tmp_path / "state")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    more, whole = map(int, done.stdout.split())
    assert more < 0.2 * whole


def test_a_write_that_stops_midway_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "state"
    save_state(State({"a": 1.0}), path)
    opened = type(path).open

    def full(self, mode="r", **options):
        file = opened(self, mode, **options)
        if "x" not in mode:
            return file

        class Full:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def write(self, content):
                if len(content) > 1000:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return file.write(content[:7])  # as little as a system call may write

            def fileno(self):
                return file.fileno()

        return Full()

    monkeypatch.setattr(type(path), "open", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(State({"a": np.ones(10_000)}), path)
    assert list(tmp_path.iterdir()) == [path]
    assert load_state(path) == State({"a": 1.0})
    save_state(State({"a": 2.0}), path)
    assert load_state(path) == State({"a": 2.0})


def test_a_folder_that_cannot_be_synced_is_told_and_one_that_need_not_be_is_not(tmp_path, monkeypatch):
    path, sync = tmp_path / "state", os.fsync

    def failing(code):
        def fsync(descriptor):
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                raise OSError(code, "no")
            sync(descriptor)

        return fsync

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to tell a folder")
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    save_state(State({"a": 1.0}), path)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="no"):
        save_state(State({"a": 1.0}), path)


def test_writers_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "state"
    states = [State({"a": np.full(50_000, float(k))}) for k in range(4)]

    def write(state):
        for _ in range(10):
            save_state(state, path)

    threads = [threading.Thread(target=write, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert load_state(path) in states
    for thread in threads:
        thread.join()
    assert list(tmp_path.iterdir()) == [path]


def test_addresses_that_are_no_text_are_refused_when_saved(tmp_path):
    with pytest.raises(ValueError, match="is no address for an archive: it is no text"):
        save_state(State({"\ud800": 1.0}), tmp_path / "state")


def test_what_a_file_says_of_numbered_layers_is_readable(tmp_path):
    import json

    import safetensors

    layer = Numbered("Linear_2", "Linear(n_in=2, n_out=2)")
    save_state(State.of([Leaf("Linear_2/W", np.eye(2), layer=layer, uid="0a")]), tmp_path / "state")
    with safetensors.safe_open(tmp_path / "state", framework="numpy") as file:
        metadata = file.metadata()
    assert metadata["ptml_state.format"] == "2"
    assert json.loads(metadata["ptml_state.layers"]) == {
        "Linear_2": {"position": 2, "configuration": "Linear(n_in=2, n_out=2)"}
    }
    assert json.loads(metadata["ptml_state.leaves"]) == [
        {"address": "Linear_2/W", "role": "parameter", "layer": "Linear_2", "uid": "0a"}
    ]
    (leaf,) = load_state(tmp_path / "state").leaves
    assert leaf.layer == layer
    assert load_report(tmp_path / "state").loaded == ("Linear_2/W",)


OTHER_PROCESS = """
import sys
import numpy as np
import ptml
from ptml.layers import BatchNorm, Dropout, Linear, Sequential
from ptml_state import load_state, save_state

def network():
    return Sequential(
        Linear(n_in=2, n_out=2), BatchNorm(n_in=2), Dropout(p=0.1), Linear(n_in=2, n_out=2, bias=False),
        BatchNorm(n_in=2, epsilon=1e-3), Dropout(p=0.2),
    )

if sys.argv[1] == "save":
    save_state(ptml.init(network(), seed=3), sys.argv[2])
else:
    assert load_state(sys.argv[2], like=network()) == ptml.init(network(), seed=3)
    turned = Sequential(*reversed(network().layers))
    try:
        load_state(sys.argv[2], like=turned)
    except ValueError as error:
        print(error)
"""


def test_two_unnamed_layers_of_each_kind_come_back_in_another_process_and_not_in_another_order(tmp_path):
    for task in ("save", "load"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS, task, str(tmp_path / "two")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "the file     Linear_1 = Linear(n_in=2, n_out=2), " in done.stdout
    assert "the network  Dropout_1 = Dropout(p=0.2), " in done.stdout
