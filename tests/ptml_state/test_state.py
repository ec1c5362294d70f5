from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import types

import attrs
import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml_state import Leaf, Role, Slot, State, combine, where


def small() -> State:
    return State(
        {
            "fc1": {"W": np.arange(6, dtype="float32").reshape(2, 3), "b": np.zeros(3, "float32")},
            "bn/running_mean": np.ones(3, "float32"),
            "adam/step_count": np.int64(7),
        },
        roles={"bn": Role.STATISTIC, "adam": Role.CLOCK},
    )


def slot(name="W", owner="fc1", shape=(2, 3)) -> Slot:
    return Slot(
        name, Role.PARAMETER, "float32", shape, None, owner=types.SimpleNamespace(name=owner), attribute=name
    )


# ---- making


def test_nested_dicts_and_addresses_give_one_ordered_mapping():
    state = small()
    assert list(state) == ["fc1/W", "fc1/b", "bn/running_mean", "adam/step_count"]
    assert list(state.keys()) == list(state)
    assert len(state) == 4
    np.testing.assert_array_equal(state["fc1/W"], [[0, 1, 2], [3, 4, 5]])
    assert [array.shape for array in state.values()] == [(2, 3), (3,), (3,), ()]
    assert state.nbytes == 24 + 12 + 12 + 8


def test_values_are_read_only_copies_in_c_order():
    given = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    state = State({"W": given, "strided": np.arange(6)[::2], "big": np.array([1, 2], ">i4")})
    given[0, 0] = 99
    assert state["W"][0, 0] == 0
    for array in state.values():
        assert array.flags.c_contiguous
        assert array.dtype.isnative
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    np.testing.assert_array_equal(state["strided"], [0, 2, 4])
    np.testing.assert_array_equal(state["big"], [1, 2])


def test_python_numbers_become_arrays_without_axes():
    state = State({"rate": 0.5, "count": 3, "on": True})
    assert [(str(array.dtype), array.shape) for array in state.values()] == [
        ("float64", ()),
        ("int64", ()),
        ("bool", ()),
    ]


def test_roles_are_given_by_selector_the_later_ones_counting():
    assert small().roles == {
        "fc1/W": Role.PARAMETER,
        "fc1/b": Role.PARAMETER,
        "bn/running_mean": Role.STATISTIC,
        "adam/step_count": Role.CLOCK,
    }
    assert set(State({"a": 1, "b": 2}, Role.OPTIMIZER).roles.values()) == {Role.OPTIMIZER}
    state = State({"a/x": 1, "a/y": 2}, roles={"a": "clock", "a/y": Role.STATISTIC})
    assert list(state.roles.values()) == [Role.CLOCK, Role.STATISTIC]


def test_a_role_for_what_is_not_there_is_a_typo():
    with pytest.raises(KeyError, match=r"'bm' matches nothing in the state\. Did you mean 'bn'"):
        State({"bn/mean": 0.0}, roles={"bm": Role.STATISTIC})


def test_what_is_no_role_is_told_the_roles():
    with pytest.raises(
        ValueError, match=r"'clok' is no role; the roles are Role\.PARAMETER, Role\.STATISTIC"
    ):
        State({"a": 1}, roles="clok")


def test_states_inside_keep_their_roles_and_their_arrays():
    inner = small()
    outer = State({"encoder": inner, "head/W": [1.0]})
    assert outer.roles["encoder/bn/running_mean"] is Role.STATISTIC
    assert outer["encoder/fc1/W"] is inner["fc1/W"]
    assert State(inner) == inner


@pytest.mark.parametrize("address", ["", "/a", "a/", "a//b"])
def test_an_address_with_an_empty_component_is_refused(address):
    with pytest.raises(ValueError, match="An address is a path without empty components"):
        State({address: 1.0})


def test_an_address_that_leads_through_a_leaf_is_refused():
    with pytest.raises(ValueError, match="'fc1' is a leaf, so nothing can sit below it; got also 'fc1/a/W'"):
        State({"fc1/a/W": 1.0, "fc1": 2.0})


def test_an_address_given_twice_is_refused():
    with pytest.raises(ValueError, match="Two leaves have the address 'fc1/W'"):
        State({"fc1/W": 1.0, "fc1": {"W": 2.0}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("words", r"'a' is given 'words' \(str\); values are arrays of numbers"),
        (None, r"'a' is given None \(NoneType\)"),
        (["x"], r"'a' is given an array of <U1"),
        ([[1], [1, 2]], "'a' is given what makes no array"),
        (np.array([object()]), "'a' is given an array of object"),
        (pt.vector("x"), r"(?s)'a' is given a symbolic variable.*variable\.eval\(\)"),
        (pytensor.shared(1.0), r"(?s)'a' is given a symbolic variable.*variable\.get_value\(\)"),
    ],
)
def test_a_value_that_is_no_array_of_numbers_is_refused(value, text):
    with pytest.raises(TypeError, match=text):
        State({"a": value})


def test_addresses_are_strings():
    with pytest.raises(TypeError, match=r"Addresses are strings; got 1 \(int\)"):
        State({1: 1.0})
    with pytest.raises(TypeError, match=r"Write its address, 'fc1/W'"):
        State({slot(): 1.0})


def test_a_state_is_made_from_a_mapping():
    with pytest.raises(TypeError, match=r'got list\. Write State\(\{"fc1/W": array\}\)'):
        State([1.0])


def test_leaves_keep_what_they_know():
    leaf = Leaf("fc1/W", np.ones(2), Role.PARAMETER, owner="Linear", uid="u", uses=3)
    state = State.of([leaf])
    (kept,) = state.leaves
    assert kept == leaf
    assert kept.uid == "u"
    assert kept.value is not leaf.value
    assert State.of(state.leaves)["fc1/W"] is state["fc1/W"]


def test_a_leaf_knows_its_type_and_size():
    leaf = Leaf("fc1/W", np.zeros((2, 3), "float32"))
    assert (leaf.shape, leaf.dtype, leaf.size, leaf.nbytes, leaf.name) == ((2, 3), np.float32, 6, 24, "W")
    assert leaf == Leaf("fc1/W", np.zeros((2, 3), "float32"), uid="other")
    assert leaf != Leaf("fc1/W", np.ones((2, 3), "float32"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(leaf)


# ---- reading


def test_a_subtree_has_relative_addresses_and_the_same_arrays():
    state = small()
    below = state["fc1"]
    assert list(below) == ["W", "b"]
    assert below["W"] is state["fc1/W"]
    assert state["bn"].roles == {"running_mean": Role.STATISTIC}


def test_a_slot_finds_its_leaf_by_identity_first():
    W = slot()
    state = State.of([Leaf("fc1_1/W", np.zeros(2), uid="other"), Leaf("fc1_2/W", np.ones(2), uid=W.uid)])
    assert state[W] is state["fc1_2/W"]
    assert state[W.handle] is state["fc1_2/W"]
    assert state["fc1_2"][W] is state["fc1_2/W"]
    assert W in state
    assert list(state.select(W.handle)) == ["fc1_2/W"]


def test_a_slot_of_a_rebuilt_network_finds_its_leaf_by_address():
    state = small()
    assert state[slot().handle] is state["fc1/W"]
    assert slot("nothing") not in state
    with pytest.raises(KeyError, match=r"The slot 'fc1/w' is not in the state\. Did you mean 'fc1/W'"):
        state[slot("w")]


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("fc1/w", r"'fc1/w' is not in the state\. Did you mean 'fc1/W'\?"),
        ("fc2", r"Did you mean 'fc1'\?"),
        ("b", r"Did you mean 'fc1/b'\?"),
        ("**/W", r"To select by a pattern, write state\.select\(\.\.\.\)"),
        ("", "There are: "),
    ],
)
def test_a_missing_address_is_told_the_nearest(address, text):
    with pytest.raises(KeyError, match=text):
        small()[address]


def test_other_keys_are_refused():
    with pytest.raises(TypeError, match=r"takes an address or a slot; got 0 \(int\).*state\.select"):
        small()[0]


def test_membership_and_get_take_addresses_paths_and_slots():
    state = small()
    assert "fc1/W" in state
    assert "fc1" in state
    assert "fc" not in state
    assert "W" not in state
    assert 3 not in state
    assert state.get("fc1/b") is state["fc1/b"]
    assert state.get("nothing") is None
    assert state.get("nothing", 0) == 0


# ---- selecting


def test_select_and_drop_split_under_full_addresses():
    state = small()
    assert list(state.select("fc1")) == ["fc1/W", "fc1/b"]
    assert list(state.drop("fc1")) == ["bn/running_mean", "adam/step_count"]
    assert list(state.select(Role.PARAMETER & ~where("**/b"))) == ["fc1/W"]
    assert list(state.drop(Role.GENERATOR)) == list(state)
    assert len(state.select(Role.GENERATOR)) == 0


@pytest.mark.parametrize("method", ["select", "drop", "partition"])
def test_selecting_what_is_not_there_is_a_typo(method):
    with pytest.raises(KeyError, match=r"'fc3' matches nothing in the state\. Did you mean 'fc1'"):
        getattr(small(), method)("fc3")


def test_partition_gives_each_leaf_to_the_first_selector_and_combine_undoes_it():
    state = small()
    parts = state.partition("**/W", Role.PARAMETER, Role.GENERATOR)
    assert [list(part) for part in parts] == [
        ["fc1/W"],
        ["fc1/b"],
        [],
        ["bn/running_mean", "adam/step_count"],
    ]
    assert combine(*parts) == state
    assert State.combine(*parts) == state


def test_combine_takes_states_without_common_addresses():
    with pytest.raises(ValueError, match="Two leaves have the address 'fc1/W'"):
        combine(small(), small())
    with pytest.raises(ValueError, match="'a' is a leaf, so nothing can sit below it"):
        combine(State({"a": 1}), State({"a/b": 1}))
    with pytest.raises(TypeError, match=r"combine takes states; got dict\. Write State\(\.\.\.\) around it"):
        combine({"a": 1})


# ---- changing


def test_replace_takes_values_scalars_and_functions_and_leaves_the_old_state_alone():
    state = small()
    new = state.replace({"fc1/W": lambda W: 2 * W, "**/b": 0.5, slot("running_mean", "bn").handle: [1, 2, 3]})
    np.testing.assert_array_equal(new["fc1/W"], 2 * state["fc1/W"])
    np.testing.assert_array_equal(new["fc1/b"], [0.5] * 3)
    np.testing.assert_array_equal(new["bn/running_mean"], [1, 2, 3])
    assert new["adam/step_count"] is state["adam/step_count"]
    assert {str(array.dtype) for array in new.select(~Role.CLOCK).values()} == {"float32"}
    assert new.roles == state.roles
    np.testing.assert_array_equal(state["fc1/b"], [0, 0, 0])
    with pytest.raises(ValueError, match="read-only"):
        new["fc1/b"][0] = 1


def test_replace_goes_in_order_each_change_reading_the_one_before():
    new = small().replace({Role.PARAMETER: 1.0, "fc1/b": lambda b: b + 1})
    assert new["fc1/W"].max() == 1
    assert new["fc1/b"].max() == 2


@pytest.mark.parametrize(
    ("address", "value", "error", "text"),
    [
        ("fc1/b", np.zeros(3), TypeError, r'does not cast to float32.*\n.*value\.astype\("float32"\)'),
        ("fc1/b", np.float64(1), TypeError, r"'fc1/b' is float32\[3\], and the new value is float64\[\]"),
        ("fc1/b", lambda b: b.astype("float64"), TypeError, r"what the function gave is float64\[3\]"),
        ("fc1/b", lambda b: None, TypeError, "What the function gave for 'fc1/b' is None"),
        ("fc1/b", None, TypeError, "The new value for 'fc1/b' is None"),
        ("fc1/b", "text", TypeError, r"'fc1/b' is given 'text' \(str\)"),
        ("fc1", {"W": 0.0}, TypeError, r"(?s)'fc1/W' is a leaf, and is given a dict.*state \| State"),
        ("fc1/b", ["x"] * 3, TypeError, "values are arrays of numbers"),
        ("fc1/b", [[1.0], [1.0, 2.0]], ValueError, "'fc1/b' is given lists that make no array"),
        ("fc1/b", np.zeros(4, "float32"), ValueError, r"(?s)the new value is float32\[4\].*reshape=True"),
        ("fc1/b", [0.0], ValueError, r"the new value is float32\[1\]"),
        ("fc1/b", 1e39, ValueError, r"'fc1/b' is float32, which cannot hold 1e\+39"),
        ("fc1/b", 2**24 + 1, ValueError, "which cannot hold 16777217"),
        ("fc1/b", 1j, TypeError, "takes real numbers; got 1j"),
        ("adam", 0.5, TypeError, "'adam/step_count' is int64 and takes whole numbers; got 0.5"),
        ("adam", 2**63, ValueError, "'adam/step_count' is int64, which cannot hold 9223372036854775808"),
        ("adam", 2**70, ValueError, "'adam/step_count' is int64, which cannot hold"),
        ("adam", np.uint64(1), TypeError, r"uint64\[\], which does not cast to int64"),
    ],
)  # fmt: skip
def test_replace_refuses_what_does_not_fit(address, value, error, text):
    with pytest.raises(error, match=text):
        small().replace({address: value})


def test_replace_casts_where_nothing_is_lost():
    new = small().replace({"fc1/b": np.ones(3, "float16"), "adam": np.int32(3), "bn": [True, 2, 0.1]})
    assert new["fc1/b"].dtype == "float32"
    assert new["adam/step_count"].dtype == "int64"
    np.testing.assert_array_equal(new["bn/running_mean"], np.array([1, 2, 0.1], "float32"))
    assert np.isnan(small().replace({"fc1/b": float("nan")})["fc1/b"]).all()
    assert np.isinf(small().replace({"fc1/b": -np.inf})["fc1/b"]).all()


def test_key_words_keep_their_dtype():
    state = State({"key": np.zeros(3, "uint32"), "on": np.array(False)})
    assert state.replace({"key": [1, 2, 2**32 - 1]})["key"].tolist() == [1, 2, 2**32 - 1]
    assert state.replace({"on": True})["on"].tolist() is True
    with pytest.raises(ValueError, match="'key' is uint32, which cannot hold -1"):
        state.replace({"key": -1})
    with pytest.raises(TypeError, match="'on' is bool and takes True or False; got 1"):
        state.replace({"on": 1})


def test_replace_reshapes_where_it_is_meant():
    wide = small().replace({"fc1": lambda array: np.repeat(array, 2, axis=-1)}, reshape=True)
    assert wide["fc1/W"].shape == (2, 6)
    assert wide["fc1/b"].shape == (6,)
    with pytest.raises(TypeError, match="does not cast to float32"):
        small().replace({"fc1/b": np.zeros(6)}, reshape=True)


def test_replace_takes_a_mapping_of_what_is_there():
    with pytest.raises(TypeError, match=r"replace takes a mapping from selectors to values; got list"):
        small().replace([("fc1/W", 0)])
    with pytest.raises(KeyError, match=r"'fc1/w' matches nothing in the state\. Did you mean 'fc1/W'"):
        small().replace({"fc1/w": 0})


def test_map_keeps_dtypes_and_shapes():
    state = small()
    assert state.map(lambda array: array + array)["fc1/W"].tolist() == (2 * state["fc1/W"]).tolist()
    grown = state.map(lambda leaf: leaf.value + (leaf.role is Role.CLOCK), with_leaf=True)
    assert state.diff(grown).changed == {"adam/step_count": 1.0}
    with pytest.raises(
        ValueError, match=r"'fc1/W' is float32\[2,3\], and what the function gave is float32\[2\]"
    ):
        state.map(lambda array: array.sum(-1))
    with pytest.raises(TypeError, match=r"what the function gave is float64"):
        state.map(lambda array: array.astype("float64"))


def test_astype_casts_floats_and_leaves_counts():
    cast = small().astype("float64")
    assert [str(array.dtype) for array in cast.values()] == ["float64", "float64", "float64", "int64"]
    assert small().astype("bfloat16").astype("float32")["fc1/W"].tolist() == small()["fc1/W"].tolist()
    assert small().astype("int32", "adam")["adam/step_count"].dtype == "int32"
    assert cast.roles == small().roles


def test_joining_takes_the_right_one_and_the_left_s_order():
    left = State({"a": 1.0, "b": 2.0})
    right = State({"c": 3.0, "a": 10.0}, Role.STATISTIC)
    both = left | right
    assert list(both) == ["a", "b", "c"]
    assert both["a"] == 10
    assert both.roles["a"] is Role.STATISTIC
    left |= right
    assert left == both


def test_joining_keeps_the_owner_that_the_right_one_does_not_know():
    known = State.of([Leaf("fc1/W", np.zeros(2), owner="Linear", uid="u", uses=2)])
    (leaf,) = (known | State({"fc1/W": [1.0, 1.0]})).leaves
    assert (leaf.owner, leaf.uid, leaf.uses) == ("Linear", "u", 2)
    assert leaf.value.tolist() == [1, 1]


def test_joining_refuses_paths_through_leaves_and_what_is_no_state():
    with pytest.raises(ValueError, match="'a' is a leaf, so nothing can sit below it; got also 'a/b'"):
        State({"a": 1.0}) | State({"a/b": 1.0})
    with pytest.raises(
        TypeError, match=r"state \| other takes a state on either side; got dict\. Write State"
    ):
        State({"a": 1.0}) | {"b": 1.0}


@pytest.mark.parametrize(
    ("names", "addresses"),
    [
        ({"fc1/W": "dense/kernel"}, ["dense/kernel", "fc1/b", "bn/running_mean", "adam/step_count"]),
        ({"fc1": "deep/dense"}, ["deep/dense/W", "deep/dense/b", "bn/running_mean", "adam/step_count"]),
        ({"fc1": "bn", "bn": "fc1"}, ["bn/W", "bn/b", "fc1/running_mean", "adam/step_count"]),
        ({"*/running_*": "*/moving_*"}, ["fc1/W", "fc1/b", "bn/moving_mean", "adam/step_count"]),
        ({"f*/W": "layer_*/kernel"}, ["layer_c1/kernel", "fc1/b", "bn/running_mean", "adam/step_count"]),
        ({"**/W": "**/kernel"}, ["fc1/kernel", "fc1/b", "bn/running_mean", "adam/step_count"]),
        (
            {"**": "model/**"},
            ["model/fc1/W", "model/fc1/b", "model/bn/running_mean", "model/adam/step_count"],
        ),
        ({"fc1/W": "x", "fc1": "y"}, ["x", "y/b", "bn/running_mean", "adam/step_count"]),
    ],
)
def test_rename_takes_addresses_paths_and_patterns(names, addresses):
    state = small()
    renamed = state.rename(names)
    assert list(renamed) == addresses
    assert all(new is old for new, old in zip(renamed.values(), state.values(), strict=True))
    assert list(renamed.roles.values()) == list(state.roles.values())


def test_rename_refuses_collisions_typos_and_other_wildcards():
    with pytest.raises(ValueError, match="Two leaves have the address 'fc1/b'"):
        small().rename({"fc1/W": "fc1/b"})
    with pytest.raises(ValueError, match="'bn' is a leaf"):
        small().rename({"fc1/W": "bn"})
    with pytest.raises(KeyError, match=r"'fc2' matches nothing to rename\. Did you mean 'fc1'"):
        small().rename({"fc2": "a"})
    with pytest.raises(KeyError, match=r"'fc1/W' matches nothing to rename"):
        small().rename({"fc1": "a", "fc1/W": "b"})
    with pytest.raises(ValueError, match="both need the same wildcards in the same order"):
        small().rename({"*/W": "kernel"})
    with pytest.raises(ValueError, match="components are joined by single '/'"):
        small().rename({"fc1": ""})


def test_a_renamed_leaf_is_no_longer_its_old_slot_s():
    W = slot()
    state = State.of([Leaf("fc1/W", np.zeros(2), uid=W.uid)])
    assert W in state
    assert W not in state.rename({"fc1": "old"})


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda state: state.__setitem__("fc1/W", 0), r"state = state\.replace\(\{'fc1/W': value\}\)"),
        (lambda state: state.__delitem__("fc1/W"), r"state = state\.drop\('fc1/W'\)"),
    ],
)
def test_changing_a_state_in_place_is_told_what_to_write(mistake, text):
    with pytest.raises(TypeError, match=rf"(?s)A State never changes\. Write.*{text}"):
        mistake(small())


def test_a_state_takes_no_attributes():
    with pytest.raises(AttributeError, match="no attribute 'W'"):
        small().W = 1


# ---- comparing


def test_equality_is_of_addresses_roles_dtypes_and_bits():
    state = small()
    assert state == small()
    assert state == combine(state.select(~Role.PARAMETER), state.select(Role.PARAMETER))
    assert state != state.drop("fc1")
    assert state != State(state, Role.OPTIMIZER)
    assert state != state.astype("float64")
    assert state != state.replace({"fc1/W": 1})
    assert state != state.to_dict()
    with pytest.raises(TypeError, match="unhashable"):
        hash(state)


def test_nan_equals_nan_and_zeros_of_two_signs_differ():
    nan = State({"a": [np.nan, 1.0], "b": np.array([np.nan], ml_dtypes.bfloat16)})
    assert nan == nan.map(np.copy)
    payload = np.array([0x7FF8000000000001], "uint64").view("float64")
    assert State({"a": payload}) == State({"a": [np.nan]})
    assert nan != nan.replace({"a": [np.nan, 2.0]})
    assert State({"a": 0.0}) != State({"a": -0.0})
    assert State({"a": 0.0}).diff(State({"a": -0.0})).changed == {"a": 0.0}


def test_a_diff_says_what_changed_the_largest_first():
    before = State(
        {
            "gone": 1.0,
            "wide": [1.0],
            "cast": [1.0],
            "clock": 3,
            "small": [1.0, 2.0],
            "large": [0.0, 5.0],
            "same": 1,
        }
    )
    after = State(
        {
            "wide": [1.0, 1.0],
            "cast": np.ones(1, "float32"),
            "clock": 3,
            "small": [1.0, 2.5],
            "large": [-9.0, 5.0],
            "same": 1,
            "new": 0.0,
        },
        roles={"clock": Role.CLOCK},
    )
    diff = before.diff(after)
    assert diff
    assert diff.added == ("new",)
    assert diff.removed == ("gone",)
    assert diff.reshaped == {"wide": ("float64[1]", "float64[2]")}
    assert diff.retyped == {"cast": ("float64[1]", "float32[1]")}
    assert diff.reroled == {"clock": (Role.PARAMETER, Role.CLOCK)}
    assert list(diff.changed.items()) == [("large", 9.0), ("small", 0.5)]
    assert before.diff(after, tolerance=1.0).changed == {"large": 9.0}


def test_a_diff_is_false_just_where_states_are_equal():
    state = small()
    assert not state.diff(small())
    assert state.diff(State(state, Role.CLOCK))
    assert not state.diff(state.replace({"fc1/b": 1e-3}), tolerance=1e-2)


def test_a_diff_measures_integers_exactly_and_what_is_not_finite_as_infinite():
    def change(one, other):
        return State({"a": one}).diff(State({"a": other})).changed

    extremes = np.iinfo("int64")
    assert change(np.int64(extremes.min), np.int64(extremes.max)) == {"a": float(2**64 - 1)}
    assert change(np.uint64(2**64 - 1), np.uint64(0)) == {"a": float(2**64 - 1)}
    assert change(np.uint8(3), np.uint8(250)) == {"a": 247.0}
    assert change(True, False) == {"a": 1.0}
    assert change([1.0, np.nan], [1.5, np.nan]) == {"a": 0.5}
    assert change([np.inf, 1.0], [np.inf, 2.0]) == {"a": 1.0}
    assert change(1.0, np.nan) == {"a": np.inf}
    assert change(np.inf, -np.inf) == {"a": np.inf}
    assert change(3 + 4j, 0j) == {"a": 5.0}
    assert change(ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(3)) == {"a": 2.0}


def test_allclose_follows_numpy():
    state = small()
    near = state.replace({"fc1/W": lambda W: W * np.float32(1 + 1e-6)})
    assert state.allclose(near)
    assert not state.allclose(near, rtol=0, atol=1e-9)
    nan = state.replace({"fc1/b": np.nan})
    assert not nan.allclose(nan)
    assert nan.allclose(nan, equal_nan=True)
    assert state.astype("bfloat16").allclose(state.astype("bfloat16"))


def test_allclose_asks_for_the_same_addresses_and_shapes():
    with pytest.raises(ValueError, match=r"(?s)states of the same addresses and shapes:.*removed +fc1/W"):
        small().allclose(small().drop("fc1"))
    with pytest.raises(ValueError, match=r"reshaped +fc1/b +float32\[3\] → float32\[2\]"):
        small().allclose(small().replace({"fc1/b": [0, 0]}, reshape=True))


@pytest.mark.parametrize("method", ["diff", "allclose"])
def test_states_are_compared_with_states(method):
    with pytest.raises(TypeError, match=r"compares with a state; got dict"):
        getattr(small(), method)({"fc1/W": 1.0})


# ---- turning into other things


def test_a_nested_dict_has_copies_that_may_be_written_to_and_leads_back():
    state = small()
    nested = state.to_dict()
    assert list(nested) == ["fc1", "bn", "adam"]
    assert State.from_dict(nested, roles=state.roles) == state
    nested["fc1"]["W"][0, 0] = 99
    assert state["fc1/W"][0, 0] == 0


def test_a_pickled_state_is_equal_and_read_only():
    state = State.of([Leaf("fc1/W", np.ones(2), Role.STATISTIC, owner="Linear", uid="u", uses=2)])
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(state, protocol))
        assert back.leaves == state.leaves
        assert back.leaves[0].uid == "u"
        assert not back["fc1/W"].flags.writeable


def test_a_copy_is_the_state_itself():
    state = small()
    assert copy.copy(state) is state
    assert copy.deepcopy(state) is state


names = st.text("abc", min_size=1, max_size=2)
arrays = st.lists(st.floats(width=32), max_size=3).map(lambda numbers: np.array(numbers, "float32"))
nested = st.recursive(
    arrays, lambda below: st.dictionaries(names, below, min_size=1, max_size=3), max_leaves=8
)


@hypothesis.given(st.dictionaries(names, nested, min_size=1, max_size=3))
def test_any_nested_dict_comes_back_from_its_state(values):
    state = State(values)
    assert State(state.to_dict()) == state == State(dict(state.items())) == pickle.loads(pickle.dumps(state))
    for address in state:
        assert address in state
        assert state.select(address)[address] is state[address]
        top = address.split("/")[0]
        assert state[top] is state[address] if top == address else state[top] == state.select(top)[top]
    assert combine(*state.partition(lambda leaf: leaf.size > 1)) == state
    assert not state.diff(state.map(np.copy))


# ---- JAX


def test_importing_ptml_state_does_not_import_jax():
    program = "import sys, ptml_state; ptml_state.State({'a': 1.0}); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False).returncode == 0


LATE = """
import sys
from ptml_state import State
state = State({"fc1": {"W": [1.0, 2.0]}, "b": 3.0})
assert "jax" not in sys.modules
import jax
LOOK
assert len(jax.tree.leaves(state)) == 2
"""


@pytest.mark.parametrize("look", ["state['b']", "repr(state)"])
def test_jax_may_be_imported_after_a_state_was_made(look):
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LATE.replace("LOOK", look)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def test_a_state_is_a_jax_pytree_that_keeps_order_roles_and_owners(jax):
    state = State.of(
        [Leaf("z", np.ones(2, "float32"), Role.STATISTIC, "BatchNorm", "u", 2), Leaf("a", np.float32(2))]
    )
    doubled = jax.tree.map(lambda array: 2 * array, state)
    assert isinstance(doubled, State)
    assert doubled == state.map(lambda array: 2 * array)
    assert [(leaf.owner, leaf.uid, leaf.uses) for leaf in doubled.leaves] == [
        ("BatchNorm", "u", 2),
        (None, None, 1),
    ]
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    assert [jax.tree_util.keystr(path) for path, _ in paths] == ["['z']", "['a']"]
    assert hash(structure) == hash(jax.tree.structure(doubled))
    without_slots = State.of(attrs.evolve(leaf, uid=None) for leaf in state.leaves)
    assert structure == jax.tree.structure(without_slots)
    assert structure != jax.tree.structure(State(state, Role.CLOCK))
    assert jax.tree.leaves(State({})) == []


def test_a_tree_of_anything_can_be_made_of_a_state(jax):
    shapes = jax.tree.map(lambda array: array.shape, small())
    assert repr(shapes).startswith("State(4 leaves, 0 B: fc1/W (2, 3), ")
    assert "(2, 3)" in str(shapes)


def test_gradients_are_taken_for_a_part_with_the_rest_closed_over(jax):
    jnp = jax.numpy
    state = small()
    parameters, rest = state.partition(Role.PARAMETER)
    X = np.array([[1.0, -1.0], [0.5, 2.0]], "float32")

    def loss(parameters):
        whole = parameters | rest
        return jnp.sum((X @ whole["fc1/W"] + whole["fc1/b"] - whole["bn/running_mean"]) ** 2)

    gradient = jax.grad(loss)(parameters)
    error = 2 * (X @ state["fc1/W"] + state["fc1/b"] - state["bn/running_mean"])
    assert isinstance(gradient, State)
    np.testing.assert_allclose(gradient["fc1/W"], X.T @ error, rtol=1e-6)
    np.testing.assert_allclose(gradient["fc1/b"], error.sum(0), rtol=1e-6)
    assert gradient.roles == parameters.roles
    jitted = jax.jit(jax.grad(lambda p: loss(combine(p))))(parameters)
    assert State(jitted).allclose(State(gradient))


def test_stacked_states_are_mapped_over(jax):
    jnp = jax.numpy
    states = [small(), small().replace({"fc1/b": 1.0})]
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *states)
    sums = jax.vmap(lambda state: state["fc1/W"].sum() + state["fc1/b"].sum())(stacked)
    np.testing.assert_allclose(sums, [15, 18])


def test_states_are_edited_inside_jit(jax):
    @jax.jit
    def step(state):
        state = state.replace({"fc1/W": lambda W: 2 * W, "fc1/b": 1.0}).map(lambda array: array + array)
        return State({"model": state.rename({"fc1": "fc"})})

    new = State(step(small())["model"])
    np.testing.assert_array_equal(new["fc/W"], 4 * small()["fc1/W"])
    np.testing.assert_array_equal(new["fc/b"], [2, 2, 2])
    with pytest.raises(ValueError, match=r"'fc1/b' is float32\[3\], and the new value is float32\[2,3\]"):
        jax.jit(lambda state: state.replace({"fc1/b": state["fc1/W"]}))(small())


def test_what_jax_returns_is_shown_compared_and_turned_into_numpy(jax):
    out = jax.jit(lambda state: state)(small().drop("adam"))
    assert isinstance(out["fc1/W"], jax.Array)
    assert out == small().drop("adam")
    assert not out.diff(small().drop("adam"))
    assert str(out) == str(small().drop("adam"))
    again = State(out)
    assert type(again["fc1/W"]) is np.ndarray
    assert not again["fc1/W"].flags.writeable
    assert again.roles == out.roles
    assert pickle.loads(pickle.dumps(out)) == out


def test_a_state_keeps_the_kind_of_array_that_it_has(jax):
    value = jax.numpy.zeros(3, "float32")
    on_jax = jax.jit(lambda state: state)(small().select("fc1"))
    assert isinstance(on_jax.replace({"fc1/b": value})["fc1/b"], jax.Array)
    assert type(small().replace({"fc1/b": value})["fc1/b"]) is np.ndarray
    with pytest.raises(TypeError, match=r'int32\[3\], which does not cast.*\n.*value\.astype\("float32"\)'):
        small().replace({"fc1/b": jax.numpy.zeros(3, "int32")})
