"""The store: cells at fixed addresses, taken in by compiles, loaded and set in place."""

from __future__ import annotations

import numpy as np
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Normal, Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.network import lay_out
from ptml_state import Leaf, Role, Slot, State, Store
from ptml_state.slot import Copied
from ptml_state.store import first_value

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}


@pytest.fixture
def X():
    return Input("X", (None, 2))


def linear(name=None, **options):
    return Linear(name, **{"n_in": 2, "n_out": 2, **options})


def compiled(graph, store, inputs=None):
    return ptml.function(inputs, graph, state=store, compile_kwargs=PYTHON)


def predicted(graph, store):
    return ptml.compile_predict(graph, state=store, compile_kwargs=PYTHON)


def test_a_store_takes_slots_in_when_a_compile_succeeds(X):
    store, fc = Store(seed=0), linear("fc")
    assert repr(store) == "<Store of 0 leaves, numpy arrays>"
    assert store.state == State({})
    compiled(fc(X), store)
    assert repr(store) == "<Store of 2 leaves, numpy arrays>"
    assert store.state == ptml.init(fc, seed=0)


def test_cells_are_made_and_only_then_adopted():
    fc, store = linear("fc"), Store(seed=0)
    places = lay_out([fc])
    cells = store.cells_for(places)
    assert list(store.state) == []
    assert [cells[place.slot].name for place in places] == ["fc/W", "fc/b"]
    store.adopt(places, cells)
    assert store.cells_for(places) == cells
    np.testing.assert_array_equal(store.state["fc/W"], first_value(fc.W.slot, "fc/W", 0))


def test_first_values_do_not_depend_on_the_order_of_compiles(X):
    a, b = linear("a"), linear("b")
    one, other = Store(seed=0), Store(seed=0)
    for store, layers in ((one, (a, b)), (other, (b, a))):
        for layer in layers:
            compiled(layer(X), store)
    assert list(other.state) == ["b/W", "b/b", "a/W", "a/b"]
    for address, value in one.state.items():
        np.testing.assert_array_equal(other.state[address], value)


def test_leaves_come_in_the_order_in_which_the_store_met_them(X):
    state = ptml.init((linear("b"), Dropout("drop", p=0.5)), seed=0)
    store = Store(state)
    compiled(linear("b")(X), store)
    compiled(BatchNorm("bn", n_in=2)(X), Store(state.drop("b")))
    assert list(store.state) == ["b/W", "b/b", "drop/key"]


def test_leaves_that_nothing_reads_ride_along(X):
    state = ptml.init(Sequential(linear("a"), linear("b"), BatchNorm("bn", n_in=2)), seed=0)
    store, a = Store(state), linear("a")
    program = compiled(a(X), store)
    program(np.ones((1, 2)))
    assert list(program.state) == ["a/W", "a/b"]
    assert store.state == state


def test_a_snapshot_is_of_numpy_arrays_that_do_not_follow(X):
    store, fc = Store(seed=0), linear("fc")
    double = ptml.function([], [], updates={fc.W: 2 * fc.W}, state=store, compile_kwargs=PYTHON)
    before = store.state
    W = np.array(before["fc/W"])
    double()
    np.testing.assert_array_equal(before["fc/W"], W)
    np.testing.assert_array_equal(store.state["fc/W"], 2 * W)
    assert not before["fc/W"].flags.writeable


def test_the_state_given_is_not_written_to(X):
    fc, state = linear("fc"), ptml.init(linear("fc"), seed=0)
    W = np.array(state["fc/W"])
    program = ptml.function([], [], updates={fc.W: 2 * fc.W}, state=state, compile_kwargs=PYTHON)
    program()
    np.testing.assert_array_equal(state["fc/W"], W)


def test_a_snapshot_of_some_slots(X):
    store, a, b = Store(seed=0), linear("a"), linear("b")
    compiled(b(a(X)), store)
    assert list(store.snapshot([b.b.slot, a.W.slot])) == ["a/W", "b/b"]


def test_loading_writes_every_leaf_and_programs_go_on_from_it(X):
    fc, store = linear("fc"), Store(seed=0)
    predict = compiled(fc(X), store)
    new = ptml.init(fc, seed=1)
    store.load(new)
    assert store.state == new
    x = np.ones((1, 2))
    np.testing.assert_allclose(predict(x), x @ new["fc/W"] + new["fc/b"])
    store.load(State({address: new[address] for address in ("fc/b", "fc/W")}))
    assert list(store.state) == ["fc/W", "fc/b"]


def test_what_was_loaded_may_be_changed_by_the_program_alone(X):
    fc, store = linear("fc"), Store(seed=0)
    double = ptml.function([], [], updates={fc.W: 2 * fc.W}, state=store, compile_kwargs=PYTHON)
    new = ptml.init(fc, seed=1).select("fc/W")
    W = np.array(new["fc/W"])
    store.load(new)
    double()
    np.testing.assert_array_equal(new["fc/W"], W)
    np.testing.assert_array_equal(store.state["fc/W"], 2 * W)


LOADS = {
    "missing": (
        lambda state: state.drop("fc/b"),
        r"A state to load has a value for every leaf of the store; this one lacks fc/b\. .*store\.set\(",
    ),
    "unknown": (
        lambda state: state | State({"fd/W": np.ones(2)}),
        r"The store has no fd/W\. Its leaves are fc/W, fc/b",
    ),
    "shape": (
        lambda state: State({**state, "fc/W": np.ones((3, 2))}),
        r"'fc/W' is float64\[3,2\], where Linear\('fc', n_in=2, n_out=2\) declares float64\[2,2\]",
    ),
    "dtype": (
        lambda state: State({**state, "fc/b": np.ones(2, "float32")}),
        r"'fc/b' is float32\[2\], where .* declares float64\[2\]\. Cast it: value\.astype\('float64'\)",
    ),
}


@pytest.mark.parametrize("mistake", LOADS)
def test_a_load_that_does_not_fit_writes_nothing(X, mistake):
    fc, store = linear("fc"), Store(seed=0)
    compiled(fc(X), store)
    before = store.state
    change, message = LOADS[mistake]
    new = ptml.init(fc, seed=1)
    with pytest.raises(ValueError, match=message):
        store.load(change(new))
    assert store.state == before


def test_setting_steers_some_leaves(X):
    fc, store = linear("fc"), Store(seed=0)
    program = compiled(fc(X), store)
    W = store.state["fc/W"]
    store.set({"fc/b": 3.0, fc.W: lambda value: 2 * value})
    np.testing.assert_array_equal(store.state["fc/W"], 2 * W)
    np.testing.assert_array_equal(program(np.zeros((1, 2))), [[3.0, 3.0]])
    store.set({Role.PARAMETER: lambda value: np.zeros_like(value)})
    assert all((value == 0).all() for value in store.state.values())
    store.set({})
    assert (program(np.ones((1, 2))) == 0).all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fc/b": 0.0, "fc/w": 0.0}, KeyError, "fc/w"),
        ({"fc/b": 0.0, "fc/W": np.ones((3, 3))}, ValueError, "fc/W"),
        ({"fc/b": 0.0, "fc/W": np.full((2, 2), 1j)}, (TypeError, ValueError), "fc/W"),
    ],
)
def test_a_set_that_does_not_fit_writes_nothing(X, changes, error, message):
    fc, store = linear("fc"), Store(seed=0)
    compiled(fc(X), store)
    store.set({"fc/b": 1.0})
    before = store.state
    with pytest.raises(error, match=message):
        store.set(changes)
    assert store.state == before


def test_leaves_that_no_program_reads_yet_are_loaded_and_set_too(X):
    store = Store(ptml.init((linear("a"), linear("b")), seed=0))
    store.set({"b/b": 5.0})
    np.testing.assert_array_equal(predicted(linear("b")(X), store)(np.zeros((1, 2))), [[5.0, 5.0]])
    store.load(ptml.init((linear("a"), linear("b")), seed=1))
    np.testing.assert_array_equal(
        predicted(linear("a")(X), store)(np.eye(2)), ptml.init(linear("a"), seed=1)["a/W"]
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.ones((2, 3)),
            r"The state's 'fc/W' is float64\[2,3\], where Linear\('fc', .*\) declares .*\[2,2\]\. .*drop",
        ),
        (
            np.ones((2, 2), "float32"),
            r"'fc/W' is float32\[2,2\], where .* Cast it: value\.astype\('float64'\)",
        ),
        (np.ones((2, 2), "int64"), r"'fc/W' is int64\[2,2\]"),
    ],
)
def test_a_leaf_of_another_type_is_refused_by_name(X, value, message):
    state = State({"fc/W": value, "fc/b": np.zeros(2)})
    with pytest.raises(ValueError, match=message):
        compiled(linear("fc")(X), state)
    with pytest.raises(ValueError, match=message):
        predicted(linear("fc")(X), state)


def test_a_state_of_another_network_is_refused_listing_both(X):
    state = ptml.init((linear("fc1"), linear("fc2")), seed=0)
    graph = linear("head")(linear("fc1")(X))
    for compile_it in (compiled, predicted):
        with pytest.raises(
            ValueError,
            match=r"belongs to another network: it lacks the parameter leaves head/W, head/b .* has fc2/W, "
            r"fc2/b that it does not\. Rename them with state\.rename",
        ):
            compile_it(graph, state)
    renamed = state.rename({"fc2": "head"})
    assert predicted(graph, renamed).state == renamed
    fresh = compiled(graph, state.drop("fc2"))
    np.testing.assert_array_equal(fresh.state["fc1/W"], state["fc1/W"])


def test_roles_are_compared_each_for_itself(X):
    # Keys are drawn beside parameters that all fit; moments of another optimizer are another network's.
    net, state = Sequential(linear("fc"), Dropout("drop", p=0.5)), ptml.init(linear("fc"), seed=0)
    compiled(net(X), state)
    moments = State.of([Leaf("adam/first_moment/fc/W", np.zeros((2, 2)), Role.OPTIMIZER)])
    fc = net[0]
    velocity = Slot("sgd/velocity", Role.OPTIMIZER, "float64", (2, 2), Zeros(), of=fc.W.slot).handle
    with pytest.raises(
        ValueError, match=r"lacks the optimizer leaves sgd/velocity/fc/W .* has adam/first_moment/fc/W"
    ):
        compiled(velocity, state | moments)


def test_many_leaves_are_listed_in_short():
    state = ptml.init(tuple(linear(f"old{i}", bias=False) for i in range(20)), seed=0)
    with pytest.raises(ValueError, match=r"old7/W and 12 more"):
        Store(state).cells_for(lay_out([linear("new")]))


def test_a_rebuilt_network_on_a_live_store_is_refused(X):
    store = Store(seed=0)
    compiled(linear("fc")(X), store)
    rebuilt = linear("fc")
    with pytest.raises(
        ValueError,
        match=r"'fc/W' of this store belongs to another object.*knows layers and transforms by identity.*"
        r"state=store\.state",
    ):
        compiled(rebuilt(X), store)
    assert compiled(rebuilt(X), store.state).state == store.state


def test_an_evolved_layer_is_another_object(X):
    import attrs

    fc, store = linear("fc"), Store(seed=0)
    compiled(fc(X), store)
    wider = attrs.evolve(fc, bias=False)
    with pytest.raises(ValueError, match="belongs to another object"):
        compiled(wider(X), store)


def test_a_second_unnamed_layer_on_a_store_is_refused_with_which_to_name(X):
    store, first, second = Store(seed=0), linear(), linear()
    compiled(first(X), store)
    assert list(store.state) == ["Linear/W", "Linear/b"]
    with pytest.raises(
        ValueError,
        match=r"knows .* at 'Linear/W', and here it would be at 'Linear_1/W'.*"
        r"Give a name to each of the layers called 'Linear', or compile on a store of its own",
    ):
        compiled(second(first(X)), store)
    with pytest.raises(ValueError, match="'Linear/W' of this store belongs to another object"):
        compiled(second(X), store)
    assert list(store.state) == ["Linear/W", "Linear/b"]
    compiled(linear("named")(first(X)), store)


def test_unnamed_layers_never_swap_their_values(X):
    # Case C52b: two unnamed layers of one shape, I and 2I, and a graph that calls them in the other order.
    one, two = linear(bias=False), linear(bias=False)
    state = ptml.init((one, two), seed=0).replace({"Linear_1/W": np.eye(2), "Linear_2/W": 2 * np.eye(2)})
    kept = compiled(two(one(X)), state)
    np.testing.assert_array_equal(kept.state[one.W], np.eye(2))
    np.testing.assert_array_equal(kept.state[two.W], 2 * np.eye(2))
    for graph in (one(two(X)), two(X)):
        for compile_it in (compiled, predicted):
            with pytest.raises(
                ValueError,
                match=r"The state has the value of .* at 'Linear_[12]/W', and here its address is 'Linear.*'"
                r".*Give a name to each of the layers called 'Linear', or move the values with state\.rename",
            ):
                compile_it(graph, state)
    moved = state.rename({"Linear_1/W": "Linear_2/W", "Linear_2/W": "Linear_1/W"})
    right = compiled(one(two(X)), moved)
    np.testing.assert_array_equal(right.state[one.W], np.eye(2))


def copy_of(slot, dtype="float64"):
    return Slot("copy", Role.OPTIMIZER, dtype, slot.shape, Copied(), of=slot)


def test_a_slot_starts_at_the_value_of_the_one_that_it_accompanies():
    W = Slot("W", Role.PARAMETER, "float64", (2,), Normal(scale=1.0))
    copied = copy_of(W, "float32")
    for store in (Store(seed=0), Store(State({"W": [3.0, 4.0]}))):
        cells = store.cells_for(lay_out((), [copied, W]))
        value = cells[copied].get_value()
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, cells[W].get_value().astype("float32"))


def test_a_copy_is_taken_of_what_a_store_has_and_kept_by_a_state():
    W = Slot("W", Role.PARAMETER, "float64", (2,), Zeros())
    copied = copy_of(W)
    store = Store(seed=0)
    store.adopt(lay_out((), [W]), store.cells_for(lay_out((), [W])))
    store.set({"W": 5.0})
    cells = store.cells_for(lay_out((), [copied]))
    np.testing.assert_array_equal(cells[copied].get_value(), [5.0, 5.0])
    kept = Store(State({"W": [5.0, 5.0], "copy/W": [1.0, 2.0]}, {"copy/W": Role.OPTIMIZER}))
    np.testing.assert_array_equal(kept.cells_for(lay_out((), [W, copied]))[copied].get_value(), [1.0, 2.0])


def test_a_copy_of_nothing_is_refused():
    W = Slot("W", Role.PARAMETER, "float64", (2,), Zeros())
    with pytest.raises(
        ValueError, match=r"'copy/W' starts at the value of the slot that it accompanies, and"
    ):
        Store(seed=0).cells_for(lay_out((), [copy_of(W)]))
    with pytest.raises(TypeError, match="has none without a store"):
        first_value(copy_of(W), "copy/W", 0)


def test_a_store_is_made_from_a_state():
    with pytest.raises(TypeError, match="A Store is made from a State; got dict"):
        Store({"fc/W": np.ones(2)})


def test_a_store_without_a_seed_draws_one():
    assert Store().seed != Store().seed
    assert Store(seed=np.int64(5)).seed == 5


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_programs_of_two_backends_share_a_store(backend, float32):
    X, fc = Input("X", (None, 2)), linear("fc")
    store = Store(seed=0)
    double = ptml.function([], [], updates={fc.W: 2 * fc.W}, state=store, backend=backend)
    here = compiled(fc.W, store)
    W = store.state["fc/W"]
    for factor in (2, 4):
        double()
        np.testing.assert_array_equal(here(), factor * W)
    store.set({"fc/W": 1.0})
    double()
    state = store.state
    np.testing.assert_array_equal(state["fc/W"], np.full((2, 2), 2.0))
    assert type(state["fc/W"]) is np.ndarray
    assert state["fc/W"].dtype == np.float32
    assert X.type.dtype == "float32"
