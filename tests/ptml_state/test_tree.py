from __future__ import annotations

import collections
import pickle

import attrs
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ptml_state import Role, Slot, State, tree_flatten, tree_flatten_with_path, tree_map, tree_unflatten


@attrs.frozen
class Linear:
    name: str
    n_in: int = 2
    _private: float = 0.5
    cache: list = attrs.field(init=False, factory=list, eq=False)


@attrs.frozen(slots=False)
class Sequential:
    layers: tuple
    name: str = "sequential"

    def __init__(self, *layers, name="sequential"):
        self.__attrs_init__(layers=layers, name=name)


@attrs.frozen(kw_only=True)
class Even:
    value: int = attrs.field()

    @value.validator
    def _check(self, attribute, value):
        if value % 2:
            raise ValueError(f"{value} is odd")


@attrs.define
class Mutable:
    value: int


Point = collections.namedtuple("Point", "x y")


def test_frozen_attrs_tuples_named_tuples_lists_and_dicts_are_nodes():
    tree = {"a": (1, [2]), "b": Point(3, Linear("fc"))}
    leaves, structure = tree_flatten(tree)
    assert leaves == [1, 2, 3, "fc", 2, 0.5]
    assert repr(structure) == "{'a': (*, [*]), 'b': Point(x=*, y=Linear(name=*, n_in=*, _private=*))}"
    assert tree_unflatten(structure, [10, 20, 30, "new", 5, 0.1]) == {
        "a": (10, [20]),
        "b": Point(30, Linear("new", 5, 0.1)),
    }


def test_paths_are_field_names_keys_and_indices():
    paths = tree_flatten_with_path({"net": Sequential(Linear("a"))})[0]
    assert paths == [
        (("net", "layers", 0, "name"), "a"),
        (("net", "layers", 0, "n_in"), 2),
        (("net", "layers", 0, "_private"), 0.5),
        (("net", "name"), "sequential"),
    ]


@pytest.mark.parametrize(
    "leaf",
    [
        None,
        np.zeros(3),
        State({"a": 1.0}),
        {1, 2},
        Mutable(3),
        Linear,
        collections.OrderedDict(a=1),
        Slot("W", Role.PARAMETER, "float32", (), None, owner=Linear("fc")),
    ],
)
def test_anything_else_is_a_leaf(leaf):
    leaves, structure = tree_flatten(leaf)
    assert len(leaves) == 1
    assert leaves[0] is leaf
    assert repr(structure) == "*"
    assert structure.paths == ((),)
    assert tree_map(lambda leaf: leaf, leaf) is leaf


def test_further_nodes_can_be_leaves():
    tree = (Linear("a"), [Linear("b")])
    leaves, structure = tree_flatten(tree, is_leaf=lambda node: isinstance(node, Linear))
    assert leaves == [Linear("a"), Linear("b")]
    assert repr(structure) == "(*, [*])"


def test_empty_nodes_have_no_leaves_and_stay():
    leaves, structure = tree_flatten({"a": (), "b": [], "c": {}})
    assert leaves == []
    assert len(structure) == 0
    assert tree_unflatten(structure, []) == {"a": (), "b": [], "c": {}}


def test_structures_compare_by_types_and_keys():
    one, other = tree_flatten((1, Linear("a")))[1], tree_flatten((2, Linear("b")))[1]
    assert one == other
    assert hash(one) == hash(other)
    assert one != tree_flatten([1, Linear("a")])[1]
    assert one != tree_flatten((1, Point("a", 2)))[1]
    assert tree_flatten({"a": 1})[1] != tree_flatten({"b": 1})[1]
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("leaves", [[1], [1, 2, 3]])
def test_a_wrong_number_of_leaves_is_counted(leaves):
    _, structure = tree_flatten((1, 2))
    with pytest.raises(ValueError, match=rf"The tree \(\*, \*\) has 2 leaves; got {len(leaves)}\."):
        tree_unflatten(structure, leaves)


def test_what_does_not_change_stays_the_same_object():
    net = Sequential(Linear("a"), Linear("b"))
    leaves, structure = tree_flatten(net)
    assert tree_unflatten(structure, leaves) is net
    assert tree_map(lambda leaf: leaf, net) is net
    changed = tree_map(lambda leaf: "c" if leaf == "b" else leaf, net)
    assert changed == Sequential(Linear("a"), Linear("c"))
    assert changed.layers[0] is net.layers[0]


def test_equal_numbers_and_texts_are_no_change_but_signs_and_types_are():
    tree = (0.0, 1000, "ab")
    assert tree_map(lambda leaf: type(leaf)(repr(leaf).strip("'")), tree) is tree
    assert repr(tree_map(lambda leaf: -0.0 if leaf == 0 else leaf, tree)) == "(-0.0, 1000, 'ab')"
    assert repr(tree_map(lambda leaf: float(leaf), (1,))) == "(1.0,)"
    assert repr(tree_map(lambda leaf: leaf == 1, (1,))) == "(True,)"


def test_an_object_at_two_places_stays_one_object():
    tied = Linear("tied")
    net = Sequential(tied, Linear("other"), tied)
    leaves, structure = tree_flatten(net)
    rebuilt = tree_unflatten(structure, [4 if leaf == 2 else leaf for leaf in leaves])
    mapped = tree_map(lambda leaf: np.array(leaf), net)
    for new in (rebuilt, mapped):
        assert new.layers[0] is new.layers[2]
        assert new.layers[0] is not tied
        assert new.layers[1] is not new.layers[0]


def test_an_object_at_two_places_that_is_given_different_leaves_becomes_two():
    tied = Linear("tied")
    leaves, structure = tree_flatten((tied, tied))
    leaves[0] = "left"
    left, right = tree_unflatten(structure, leaves)
    assert left == Linear("left")
    assert right is tied


def test_equal_objects_are_not_made_one():
    left, right = tree_map(lambda leaf: 4 if leaf == 2 else leaf, (Linear("a"), Linear("a")))
    assert left == right
    assert left is not right


def test_validators_run_when_a_node_is_rebuilt():
    assert tree_map(lambda leaf: leaf + 2, Even(value=2)) == Even(value=4)
    with pytest.raises(ValueError, match="3 is odd"):
        tree_map(lambda leaf: leaf + 1, Even(value=2))


def test_constructors_of_their_own_are_served():
    net = Sequential(Linear("a"), name="net")
    assert tree_map(lambda leaf: f"{leaf}!" if isinstance(leaf, str) else leaf, net) == Sequential(
        Linear("a!"), name="net!"
    )


def test_several_trees_map_together():
    assert tree_map(
        lambda a, b, c: a + b + c, {"a": (1,), "b": 2}, {"b": 20, "a": (10,)}, {"a": (5,), "b": 5}
    ) == {
        "a": (16,),
        "b": 27,
    }


def test_the_first_tree_decides_how_deep():
    assert tree_map(lambda a, b: b, (1, 2), ([3], {"x": 4})) == ([3], {"x": 4})


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"a": (1, 2), "c": 3},
            "At the root the first tree has a dict with a, b, and another one a dict with a, c",
        ),
        (
            {"a": (1, 2, 3), "b": 3},
            "At a the first tree has a tuple with 0, 1, and another one a tuple with 0, 1, 2",
        ),
        ({"a": 1, "b": 3}, "At a the first tree has a tuple with 0, 1, and another one a int"),
    ],
)
def test_trees_of_other_structure_are_told_where(other, text):
    with pytest.raises(ValueError, match=text):
        tree_map(lambda a, b: a, {"a": (1, 2), "b": 3}, other)


trees = st.recursive(
    st.integers() | st.text(max_size=2) | st.none() | st.floats(),
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), below, max_size=3)
        | st.builds(Point, below, below)
        | st.builds(lambda *layers: Sequential(*layers), below, below)
    ),
    max_leaves=12,
)


@hypothesis.given(trees)
def test_taking_apart_and_putting_together_gives_the_tree_back(tree):
    leaves, structure = tree_flatten(tree)
    assert len(structure.paths) == len(structure) == len(leaves)
    assert tree_unflatten(structure, leaves) is tree
    replaced = tree_unflatten(structure, [("new", k) for k in range(len(leaves))])
    assert tree_flatten(replaced, is_leaf=lambda node: isinstance(node, tuple) and node[:1] == ("new",))[
        0
    ] == [("new", k) for k in range(len(leaves))]
