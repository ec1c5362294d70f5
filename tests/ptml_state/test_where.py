from __future__ import annotations

import types

import attrs
import numpy as np
import pytest

from ptml_state import Leaf, Role, Slot, Where, where
from ptml_state.where import find, nearest


def leaf(address, role=Role.PARAMETER, **known) -> Leaf:
    return Leaf(address, 0.0, role, **known)


class Layer:
    pass


class Dense(Layer):
    pass


class Linear(Dense):
    pass


LEAVES = [
    leaf("block0/attn/query/W", owner="Linear"),
    leaf("block0/attn/query/b", owner="Linear"),
    leaf("block0/fc/W", owner="Dense"),
    leaf("block1/fc/W", owner="Dense"),
    leaf("block10/fc/W", owner="Dense"),
    leaf("bn/running_mean", Role.STATISTIC, owner="BatchNorm"),
    leaf("adam/step_count", Role.CLOCK),
]


def chosen(selector) -> list[str]:
    return [found.address for found in find(selector, LEAVES)]


@pytest.mark.parametrize(
    ("pattern", "addresses"),
    [
        ("block0/fc/W", ["block0/fc/W"]),
        ("block0", ["block0/attn/query/W", "block0/attn/query/b", "block0/fc/W"]),
        ("block0/attn", ["block0/attn/query/W", "block0/attn/query/b"]),
        ("block?", ["block0/attn/query/W", "block0/attn/query/b", "block0/fc/W", "block1/fc/W"]),
        ("block*/fc", ["block0/fc/W", "block1/fc/W", "block10/fc/W"]),
        ("block[1-9]/fc", ["block1/fc/W"]),
        ("*/W", None),
        ("*/*/W", ["block0/fc/W", "block1/fc/W", "block10/fc/W"]),
        ("**/W", ["block0/attn/query/W", "block0/fc/W", "block1/fc/W", "block10/fc/W"]),
        ("**/query/**/b", ["block0/attn/query/b"]),
        ("bn/**", ["bn/running_mean"]),
        ("**/running_*", ["bn/running_mean"]),
        ("**", [leaf.address for leaf in LEAVES]),
    ],
)
def test_a_pattern_matches_inside_components_and_everything_below_what_it_names(pattern, addresses):
    if addresses is None:
        with pytest.raises(KeyError, match="matches nothing"):
            chosen(pattern)
    else:
        assert chosen(pattern) == addresses


def test_a_name_is_not_a_prefix_of_letters():
    assert chosen("block1") == ["block1/fc/W"]


def test_a_name_with_a_pattern_s_characters_is_found_as_it_stands():
    odd = [leaf("fc[0]/W"), leaf("fc0/W")]
    assert find("fc[0]", odd) == odd
    assert find("fc[0]/W", [leaf("fc[0]/W")]) == [leaf("fc[0]/W")]


def test_case_counts():
    with pytest.raises(KeyError, match=r"Did you mean 'bn'\?"):
        chosen("BN")


def test_roles_types_and_functions_select():
    assert chosen(Role.STATISTIC) == ["bn/running_mean"]
    assert chosen(Linear) == ["block0/attn/query/W", "block0/attn/query/b"]
    assert chosen(lambda leaf: leaf.address.endswith("b")) == ["block0/attn/query/b"]


def test_a_type_stands_for_the_types_below_it():
    assert chosen(Dense) == [f"block{block}" for block in ("0/attn/query/W", "0/attn/query/b", "0/fc/W")] + [
        "block1/fc/W",
        "block10/fc/W",
    ]
    assert chosen(Layer) == chosen(Dense)
    assert chosen(Linear | Dense) == chosen(Dense)


def test_an_item_that_knows_its_class_is_asked_for_that():
    item = types.SimpleNamespace(address="a", role=None, owner="Other", uid=None, kind=Linear)
    assert where(Dense).matches(item)
    assert not where(int).matches(item)


def test_slots_select_by_identity_and_in_a_rebuilt_network_by_address():
    slot = Slot("step_count", Role.CLOCK, "int64", (), None)
    renumbered = [leaf("count_1", uid="other"), leaf("count_2", uid=slot.uid)]
    assert find(slot, renumbered) == renumbered[1:]
    assert find(slot.handle, renumbered) == renumbered[1:]
    assert find(slot, [leaf("step_count", uid="another")]) == [leaf("step_count")]
    assert where(slot).matches(slot)


def test_selectors_join():
    assert chosen(where("block0") & ~where("**/b") & Linear) == ["block0/attn/query/W"]
    assert chosen("bn" | Role.CLOCK) == ["bn/running_mean", "adam/step_count"]
    assert chosen(~Role.PARAMETER) == ["bn/running_mean", "adam/step_count"]
    assert chosen(~(where("block0") | "block1" | "block10")) == ["bn/running_mean", "adam/step_count"]


def test_the_order_is_the_leaves():
    assert chosen(where("bn") | "block1") == ["block1/fc/W", "bn/running_mean"]


def is_bias(leaf):
    return leaf.name == "b"


@pytest.mark.parametrize(
    "text",
    [
        "where('fc1/W')",
        "where(Role.PARAMETER)",
        "where(Linear)",
        "where(is_bias)",
        "where('fc1') & Role.PARAMETER",
        "(where('fc1') | Role.CLOCK) & ~where(Linear)",
        "~(where('fc1') & ~Role.CLOCK)",
        "where('a') | where('b') & where('c')",
        "where('a') & where('b') & where('c')",
    ],
)
def test_a_selector_prints_as_it_is_written(text):
    selector = eval(text)
    assert isinstance(selector, Where)
    assert repr(selector) == text
    assert eval(repr(selector)) == selector
    assert hash(eval(repr(selector))) == hash(selector)


def test_a_slot_selector_prints_as_it_is_written():
    slot = Slot(
        "W", Role.PARAMETER, "float32", (), None, owner=types.SimpleNamespace(name="fc1"), attribute="W"
    )
    assert repr(where(slot)) == "where(fc1.W)"
    assert repr(where(Slot("adam/step_count", Role.CLOCK, "int64", (), None))).startswith(
        "where(Slot('adam/step"
    )


def test_selectors_are_frozen_and_doubly_inverted_ones_are_themselves():
    selector = where("fc1")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        selector.pattern = "fc2"
    assert ~~selector is selector
    assert where(selector) is selector


@pytest.mark.parametrize("wrong", [3, None, ["fc1"], 1.5])
def test_what_is_no_selector_is_told_what_is(wrong):
    with pytest.raises(
        TypeError, match=r"(?s)A selector is one of.*Role\.PARAMETER.*got .*" + type(wrong).__name__
    ):
        where(wrong)


def test_a_layer_object_is_told_to_give_its_name():
    @attrs.frozen
    class Callable:
        name: str

        def __call__(self, X):
            return X

    with pytest.raises(TypeError, match=r'Write its name, "fc1", its type, Callable, or one of its slots'):
        where(Callable("fc1"))


@pytest.mark.parametrize("pattern", ["", "/fc1", "fc1/", "fc1//W"])
def test_a_pattern_with_an_empty_component_is_refused(pattern):
    with pytest.raises(ValueError, match="components are joined by single '/'"):
        where(pattern)


def test_selectors_are_not_joined_by_and():
    with pytest.raises(TypeError, match=r"join selectors by &, \| and ~"):
        where("a") and where("b")


def test_a_function_that_gives_an_array_is_told_to_decide():
    with pytest.raises(TypeError, match=r"where\(<lambda>\) gave bool\[2\] for 'fc1/W'\. Write \.any\(\) or"):
        find(lambda leaf: leaf.value > 0, [Leaf("fc1/W", np.array([1.0, 2.0]))])


@pytest.mark.parametrize(
    "selector", ["blok1", where("block1") | "blok1", ~where("blok1"), Role.CLOCK & "blok1"]
)
def test_a_typo_is_never_silent(selector):
    with pytest.raises(KeyError, match=r"'blok1' matches nothing in the network\. Did you mean 'block1'"):
        find(selector, LEAVES, what="the network")


def test_a_slot_that_is_not_there_is_never_silent():
    with pytest.raises(KeyError, match=r"'steps' matches nothing in the state"):
        chosen(Slot("steps", Role.CLOCK, "int64", (), None))


def test_what_names_no_address_may_match_nothing():
    assert chosen(Role.GENERATOR) == []
    assert chosen(int) == []
    assert chosen(lambda leaf: False) == []
    assert chosen(where("bn") & Role.PARAMETER) == []


def test_a_message_prints_as_it_was_written():
    with pytest.raises(KeyError) as caught:
        chosen("bm")
    assert str(caught.value) == "'bm' matches nothing in the state. Did you mean 'bn'?"


def test_the_nearest_addresses_may_be_paths_and_ends_of_addresses():
    assert nearest("block0/atn", [leaf.address for leaf in LEAVES]) == "Did you mean 'block0/attn'?"
    assert nearest("query", [leaf.address for leaf in LEAVES]) == "Did you mean 'block0/attn/query'?"
    assert nearest("zzz", ["a/W", "a/b"]) == "There are: a/W, a/b."
    assert (
        nearest("zzz", [leaf.address for leaf in LEAVES]) == "There are: block0, block1, block10, bn, adam."
    )
    assert nearest("zzz", []) == "There are no leaves at all."
