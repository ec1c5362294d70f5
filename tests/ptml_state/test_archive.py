from __future__ import annotations

import json
import os
import subprocess
import sys

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from ptml_state import ArchiveError, Leaf, Role, State, load_state, save_state


def whole() -> State:
    return State.of(
        [
            Leaf("z/W", np.arange(6, dtype="float32").reshape(2, 3), owner="Linear", uses=2),
            Leaf("bn/running_mean", np.ones(3), Role.STATISTIC, owner="BatchNorm"),
            Leaf("drop/key", np.array([1, 2, 2**32 - 1], "uint32"), Role.GENERATOR),
            Leaf("adam/step_count", np.int64(2**40), Role.CLOCK, owner="Adam"),
            Leaf("a/mask", np.array([True, False])),
            Leaf("a/half", np.array([0.1, 65504], "float16")),
            Leaf("a/brain", np.array([[0.1], [3e38]], ml_dtypes.bfloat16)),
            Leaf("a/empty", np.zeros((0, 3), "float32")),
        ]
    )


def test_a_state_comes_back_with_order_roles_owners_and_uses(tmp_path):
    save_state(whole(), tmp_path / "model.safetensors")
    back = load_state(tmp_path / "model.safetensors")
    assert back == whole()
    assert back.leaves == whole().leaves
    assert list(back) == list(whole())
    assert not any(array.flags.writeable for array in back.values())


def test_a_path_may_be_a_string_and_an_empty_state_is_one_too(tmp_path):
    save_state(State({}), str(tmp_path / "empty"))
    assert load_state(str(tmp_path / "empty")) == State({})


def test_safetensors_reads_what_is_written(tmp_path):
    save_state(whole(), tmp_path / "model.safetensors")
    plain = load_file(tmp_path / "model.safetensors")
    assert plain.keys() == set(whole())
    for address, array in plain.items():
        np.testing.assert_array_equal(array, whole()[address])
        assert array.dtype == whole()[address].dtype


def test_a_file_of_anyone_s_has_parameters(tmp_path):
    save_file(
        {"fc.weight": np.ones(2), "fc.bias": np.zeros(2)}, tmp_path / "other", metadata={"format": "np"}
    )
    state = load_state(tmp_path / "other")
    assert set(state) == {"fc.weight", "fc.bias"}
    assert set(state.roles.values()) == {Role.PARAMETER}


def test_memory_in_any_layout_is_written_in_c_order(tmp_path):
    fortran = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    strided = np.arange(12.0).reshape(3, 4)[:, ::2]
    state = State({"fortran": fortran, "strided": strided, "big": np.array([1.5, 2.5], ">f4")})
    # What JAX, or another library, keeps in a state goes through as it lies.
    foreign = State._made({"fortran": Leaf("fortran", fortran), "strided": Leaf("strided", strided)})
    for k, given in enumerate([state, foreign]):
        save_state(given, tmp_path / str(k))
        back = load_state(tmp_path / str(k))
        np.testing.assert_array_equal(back["fortran"], fortran)
        np.testing.assert_array_equal(back["strided"], strided)
    np.testing.assert_array_equal(load_state(tmp_path / "0")["big"], [1.5, 2.5])


dtypes = st.sampled_from(["float32", "float64", "float16", "int64", "int8", "uint32", "bool"])
names = st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0)))


@hypothesis.given(st.dictionaries(names, arrays))
def test_any_state_comes_back(tmp_path_factory, values):
    hypothesis.assume("__metadata__" not in values)
    path = tmp_path_factory.mktemp("archive") / "state"
    state = State(values, Role.OPTIMIZER)
    save_state(state, path)
    assert load_state(path) == state
    assert list(load_state(path)) == list(state)


def test_what_jax_returns_is_written(tmp_path):
    jax = pytest.importorskip("jax")
    state = State({"fc/W": np.arange(6, dtype="float32").reshape(2, 3)})
    transposed = jax.jit(lambda state: jax.tree.map(lambda array: array.T, state))(state)
    save_state(transposed, tmp_path / "state")
    np.testing.assert_array_equal(load_state(tmp_path / "state")["fc/W"], state["fc/W"].T)


def test_only_states_are_written(tmp_path):
    with pytest.raises(
        TypeError, match=r"save_state writes a State; got dict\. Write program\.state or State"
    ):
        save_state({"a": np.ones(2)}, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_what_safetensors_has_no_place_for_is_refused(tmp_path):
    with pytest.raises(
        TypeError, match=r"'a/b' is complex128, which archives do not keep\. Write state\.astype"
    ):
        save_state(State({"a/b": 1j}), tmp_path / "state")
    with pytest.raises(TypeError, match="'a' is float8_e5m2, which archives do not keep"):
        save_state(State({"a": np.ones(2, ml_dtypes.float8_e5m2)}), tmp_path / "state")
    with pytest.raises(ValueError, match="'__metadata__' is no address for an archive"):
        save_state(State({"__metadata__": 1.0}), tmp_path / "state")
    with pytest.raises(IsADirectoryError, match="is a folder; an archive is one file"):
        save_state(State({"a": 1.0}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_arrays_that_numpy_has_no_dtype_for_are_named(tmp_path):
    save_file({"a": np.ones(2, ml_dtypes.float8_e5m2)}, tmp_path / "eighths")
    with pytest.raises(
        ArchiveError, match=r"eighths has an array that cannot be read: 'a' is of the dtype 'F8_E5M2', and"
    ):
        load_state(tmp_path / "eighths")


# ---- damaged files


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.safetensors"
    save_state(State({"fc/W": np.arange(1000.0)}), path)
    return path


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda content: content[: len(content) // 2], r"it is truncated: 8\d+ bytes are announced, and"),
        (lambda content: content[:-1], "it is truncated"),
        (lambda content: content[:20], "it is truncated: the header alone takes"),
        (lambda content: b"", "it is empty"),
        (lambda content: content[:4], r"it does not start as one does \(4 bytes in all\)"),
        (lambda content: b"\xff" * 8 + content[8:], "it does not start as one does"),
        (lambda content: content[:8] + b"x" * 50 + content[58:], "its header is garbage"),
        (lambda content: content + b"\0", "it has 1 trailing bytes behind the last array"),
        (lambda content: b"not safetensors at all, but some text", "it does not start as one does"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_what_is_wrong(good, damage, text):
    good.write_bytes(damage(good.read_bytes()))
    with pytest.raises(ArchiveError, match=rf"good\.safetensors is no whole safetensors file: {text}"):
        load_state(good)
    assert issubclass(ArchiveError, ValueError)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nothing\.safetensors"):
        load_state(tmp_path / "nothing.safetensors")
    with pytest.raises(ArchiveError, match="is a folder; an archive is one file"):
        load_state(tmp_path)


def rewritten(path, change) -> None:
    """Write a file again with other metadata."""
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    change(metadata)
    save_file(load_file(path), path, metadata)


def test_a_later_format_asks_for_an_update(good):
    rewritten(good, lambda metadata: metadata.update({"ptml_state.format": "3", "ptml_state.version": "9.1"}))
    with pytest.raises(
        ArchiveError, match=r"good.* format 3, written by version 9\.1;.*up to format 2\. Update"
    ):
        load_state(good)


@pytest.mark.parametrize(
    ("leaves", "text"),
    [
        (
            json.dumps([{"address": "fc/V", "role": "parameter"}]),
            "its list of leaves and its arrays differ in fc/V",
        ),
        (json.dumps([]), "its list of leaves and its arrays differ in fc/W"),
        (json.dumps([{"address": "fc/W", "role": "guess"}]), r"'guess' is not a valid Role"),
        (json.dumps([{"address": "fc/W"}]), "have an entry without a str called 'role'"),
        (
            json.dumps([{"address": ["fc/W"], "role": "clock"}]),
            "have an entry without a str called 'address'",
        ),
        (json.dumps([{"address": "fc/W", "role": "clock", "uses": True}]), "without a int called 'uses'"),
        (json.dumps([{"address": "fc/W", "role": "clock", "uses": 0}]), "'fc/W' is used 0 times"),
        (
            json.dumps([{"address": "fc/W", "role": "clock", "layer": "L_1"}]),
            "layer 'L_1' that it",
        ),
        (json.dumps([{"address": "fc/W", "role": "clock"}] * 2), "Two leaves have the address 'fc/W'"),
        ("garbage", "'ptml_state.leaves' of its metadata is garbage"),
        ("[" * 100_000, "'ptml_state.leaves' of its metadata is nested too deeply"),
        ("{}", "'ptml_state.leaves' of its metadata is no list"),
        ("[3]", "holds no state: its leaves or layers have an entry without a str called 'address'"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(good, leaves, text):
    rewritten(good, lambda metadata: metadata.update({"ptml_state.leaves": leaves}))
    with pytest.raises(ArchiveError, match=text):
        load_state(good)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("ptml_state.format", "two", "'ptml_state.format' of its metadata is 'two', and no number"),
        ("ptml_state.format", "0", "it is of format 0, which never was"),
        ("ptml_state.revision", "-1", "'ptml_state.revision' of its metadata is '-1', and no number"),
        ("ptml_state.layers", "[]", "'ptml_state.layers' of its metadata is no dict"),
        (
            "ptml_state.layers",
            '{"Linear_1": {}}',
            "its leaves or layers have an entry without a str called 'configuration'",
        ),
    ],
)
def test_numbers_and_layers_that_are_none_are_refused(good, name, given, text):
    rewritten(good, lambda metadata: metadata.update({name: given}))
    with pytest.raises(ArchiveError, match=f"good.safetensors holds no state: {text}"):
        load_state(good)


def test_a_file_of_format_1_is_still_read(good):
    rows = [["fc/W", "statistic", "Linear", 2, "0a"]]
    whole = {"ptml_state.format": "1", "ptml_state.version": "0.0", "ptml_state.leaves": json.dumps(rows)}
    rewritten(good, lambda metadata: (metadata.clear(), metadata.update(whole)))
    (leaf,) = load_state(good).leaves
    assert (leaf.address, leaf.role, leaf.owner, leaf.uses, leaf.uid) == (
        "fc/W", Role.STATISTIC, "Linear", 2, "0a",
    )  # fmt: skip
    rewritten(good, lambda metadata: metadata.update({"ptml_state.leaves": "[[]]"}))
    with pytest.raises(ArchiveError, match="its list of leaves has an entry that is none"):
        load_state(good)


def test_names_that_are_no_addresses_are_refused(tmp_path):
    save_file({"a": np.ones(1), "a/b": np.ones(1)}, tmp_path / "odd")
    with pytest.raises(ArchiveError, match="odd holds no state: 'a' is a leaf, so nothing can sit below it"):
        load_state(tmp_path / "odd")


# ---- writing whole


def test_a_file_that_cannot_be_written_leaves_the_one_before(good, monkeypatch):
    before = load_state(good)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(State({"fc/W": np.zeros(3)}), good)
    assert load_state(good) == before
    assert list(good.parent.iterdir()) == [good]


LIMITED = """
import resource, sys
import numpy as np
from ptml_state import State, save_state
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_state(State({"fc/W": np.ones(100_000)}), sys.argv[1])
except OSError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.skipif(os.name != "posix", reason="limits on file sizes are POSIX's")
def test_a_disk_that_refuses_writes_leaves_the_file_before(good):
    before = load_state(good)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, str(good)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "refused: [Errno 27]" in done.stderr
    assert load_state(good) == before
    assert list(good.parent.iterdir()) == [good]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        save_state(State({"a": 1.0}), tmp_path / "nowhere" / "state.safetensors")


def test_reading_an_archive_imports_and_runs_nothing_of_it(good):
    row = json.dumps([{"address": "fc/W", "role": "parameter", "owner": "os.system"}])
    rewritten(good, lambda metadata: metadata.update({"ptml_state.leaves": row}))
    (leaf,) = load_state(good).leaves
    assert leaf.owner == "os.system"
