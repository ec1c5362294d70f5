"""The door: what `function` takes, collects, refuses, and leaves as it was when it fails."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode
from pytensor.graph.utils import MissingInputError

import ptml
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.optim import Gradients, adam, get_gradients, sgd
from ptml_state import Role, Slot, State, Store

PYTHON = Mode(linker="py", optimizer="fast_compile")


@pytest.fixture
def X():
    return Input("X", (None, 2))


@pytest.fixture
def fc():
    return Linear("fc", n_in=2, n_out=2)


def compiled(outputs, inputs=None, **options):
    return ptml.function(inputs, outputs, **{"seed": 0, "mode": PYTHON, **options})


def test_inputs_are_collected_in_the_order_in_which_they_were_made():
    inputs = [pt.scalar(name) for name in ("q", "a", "z", "b")]
    graph = inputs[2] - inputs[0] * inputs[3] + inputs[1]
    assert compiled(graph).inputs == tuple(inputs)


def test_only_what_is_read_is_collected(X, fc):
    Input("unused", ())
    shared = pytensor.shared(1.0)
    assert compiled(fc(X) * shared).inputs == (X,)
    assert compiled(fc.W).inputs == ()


def test_inputs_of_updates_and_schedules_are_collected_too(X, fc):
    rate = pt.scalar("rate")
    loss = (fc(X) ** 2).mean()
    program = compiled(loss, updates=sgd(rate)(loss, [fc.W]))
    assert program.inputs == (X, rate)
    before = program.state
    program(np.ones((1, 2)), 0.0)
    assert program.state == before


def test_inputs_given_are_taken_in_their_order_and_may_be_wrapped(X, fc):
    factor = pt.scalar("factor")
    wrapped = In(factor, name="scale")
    program = compiled(fc(X) * factor, [wrapped, In(X, strict=False)])
    assert program.inputs == (factor, X)
    np.testing.assert_array_equal(program(0.0, np.ones((1, 2))), np.zeros((1, 2)))
    np.testing.assert_array_equal(program(X=np.ones((1, 2)), scale=0.0), np.zeros((1, 2)))
    assert wrapped.variable is factor


def test_outputs_may_be_wrapped(X):
    program = compiled(Out(2 * X, borrow=True), [X])
    np.testing.assert_array_equal(program(np.ones((1, 2))), np.full((1, 2), 2.0))
    assert isinstance(compiled([Out(2 * X)], [X])(np.ones((1, 2))), list)


def test_a_computed_variable_may_be_an_input(X, fc):
    bn, out = BatchNorm("bn", n_in=2), Linear("out", n_in=2, n_out=1)
    hidden = bn(fc(X))
    wrapped = In(hidden, name="hidden")
    for entry in (hidden, wrapped):
        program = compiled(out(hidden), [entry])
        assert list(program.state) == ["out/W", "out/b"]
        h = np.ones((3, 2))
        np.testing.assert_allclose(program(h), h @ program.state["out/W"] + program.state["out/b"])
    assert wrapped.variable is hidden
    both = compiled([out(hidden), hidden.sum()], [hidden])
    assert both(np.ones((3, 2)))[1] == 6.0


def test_a_missing_input_is_pytensors_error_and_names_it(X, fc):
    with pytest.raises(MissingInputError, match="X"):
        compiled(fc(X), [])


def test_an_input_that_nothing_reads_is_pytensors_error_unless_told(X, fc):
    other = Input("other", ())
    with pytest.raises(Exception, match="other"):
        compiled(fc(X), [X, other])
    assert compiled(fc(X), [X, other], on_unused_input="ignore").inputs == (X, other)


def test_a_slot_is_no_input(fc):
    with pytest.raises(Exception, match="fc/W"):
        compiled(2 * fc.W, [fc.W])


def test_givens_replace_inputs_handles_and_what_is_computed(X, fc):
    data, index = pytensor.shared(np.arange(12.0).reshape(6, 2)), pt.lscalar("index")
    batch = data[2 * index : 2 * index + 2]
    program = compiled(fc(X), [index], givens={X: batch})
    np.testing.assert_allclose(
        program(1), data.get_value()[2:4] @ program.state["fc/W"] + program.state["fc/b"]
    )
    tied = compiled(fc(X), [X], givens=[(fc.b, pt.zeros((2,)))])
    assert list(tied.state) == ["fc/W"]
    hidden = fc(X)
    out = Linear("out", n_in=2, n_out=1)
    replaced = compiled(out(hidden), [X], givens={hidden: X})
    assert list(replaced.state) == ["out/W", "out/b"]


def test_givens_reach_updates_and_training(X, fc):
    data, index = pytensor.shared(np.ones((6, 2))), pt.lscalar("index")
    loss = (fc(X) ** 2).mean()
    step = compiled(loss, [index], updates=sgd(0.1)(loss, [fc.W, fc.b]), givens={X: data[index : index + 2]})
    assert step(0) > step(0)


def test_updates_are_pairs_mappings_or_a_rules(X, fc):
    loss = (fc(X) ** 2).mean()
    for updates in (
        {fc.W: fc.W * 2},
        [(fc.W, fc.W * 2)],
        ((handle, new) for handle, new in [(fc.W, fc.W * 2)]),
        sgd(0.1)(loss, [fc.W]),
    ):
        program = compiled(loss, [X], updates=updates)
        before = program.state
        program(np.ones((1, 2)))
        assert not np.array_equal(program.state["fc/W"], before["fc/W"])
        np.testing.assert_array_equal(program.state["fc/b"], before["fc/b"])


def test_all_updates_read_what_was_there_before(fc):
    program = compiled([], updates={fc.W: fc.W + fc.b, fc.b: fc.b + 1})
    W = program.state["fc/W"]
    program()
    program()
    np.testing.assert_allclose(program.state["fc/W"], W + 0 + 1)
    np.testing.assert_allclose(program.state["fc/b"], [2.0, 2.0])


def test_shared_variables_of_the_users_are_read_and_updated(X, fc):
    count, factor = pytensor.shared(0.0, name="count"), pytensor.shared(2.0)
    program = compiled(fc(X) * factor, [X], updates=[(count, count + X.sum()), (fc.b, fc.b + factor)])
    program(np.ones((3, 2)))
    assert count.get_value() == 6.0
    np.testing.assert_array_equal(program.state["fc/b"], [2.0, 2.0])
    factor.set_value(0.0)
    assert (program(np.ones((1, 2))) == 0).all()
    assert list(program.state) == ["fc/W", "fc/b"]


def test_only_handles_and_shared_variables_are_updated(X, fc):
    with pytest.raises(TypeError, match=r"updates takes \{handle: new value\}; X is no slot's handle"):
        compiled(fc(X), [X], updates={X: X + 1})
    with pytest.raises(TypeError, match=r"'fc/W' is no slot's handle|fc/W is no slot's handle"):
        compiled(fc(X), [X], updates={"fc/W": fc.W})


def test_one_key_has_one_update(X, fc):
    with pytest.raises(ValueError, match=r"fc/W.* has two updates"):
        compiled(fc(X), [X], updates=[(fc.W, fc.W), (fc.W, fc.W + 1)])


def test_gradients_are_no_updates(X, fc):
    loss = (fc(X) ** 2).mean()
    with pytest.raises(TypeError, match="radient"):
        compiled(loss, [X], updates=Gradients({fc.W: get_gradients(loss, [fc.W])[0]}))


@pytest.mark.parametrize("graph", ["parameters", "dropout", "batch norm", "clock"])
def test_plain_pytensor_names_the_slot_and_what_compiles_it(X, graph):
    outputs = {
        "parameters": Linear("fc", n_in=2, n_out=2)(X),
        "dropout": Dropout("drop", p=0.5)(X),
        "batch norm": BatchNorm("bn", n_in=2)(X),
        "clock": 2 * Slot("ticks", Role.CLOCK, "int64", (), Zeros()).handle,
    }
    names = {"parameters": "fc/[Wb]", "dropout": "drop/key", "batch norm": "bn/", "clock": "ticks"}
    message = rf"{names[graph]}.*\[slot: needs ptml\.function\]"
    with pytest.raises(MissingInputError, match=message):
        pytensor.function([X], outputs[graph], on_unused_input="ignore")
    with pytest.raises(MissingInputError, match=message):
        outputs[graph].eval({X: np.ones((3, 2))} if graph != "clock" else {})


def test_plain_pytensor_takes_no_updates_of_slots(X, fc):
    loss = (fc(X) ** 2).mean()
    with pytest.raises((TypeError, MissingInputError), match="fc/"):
        pytensor.function([X], loss, updates=dict(adam(1e-3)(loss, [fc.W, fc.b])))


def test_a_state_a_store_and_a_program_are_taken(X, fc):
    state = ptml.init(fc, seed=3)
    assert compiled(fc(X), [X], state=state, seed=None).state == state
    store = Store(state)
    first = compiled(fc(X), [X], state=store, seed=None)
    second = compiled(2 * fc(X), [X], state=first, seed=None)
    assert first.store is store
    assert second.store is store


def test_what_a_state_lacks_is_drawn_by_the_seed(X, fc):
    state = ptml.init(fc, seed=3).select("fc/W")
    bn = BatchNorm("bn", n_in=2)
    program = compiled(bn(fc(X)), [X], state=state, seed=5)
    np.testing.assert_array_equal(program.state["fc/W"], state["fc/W"])
    assert program.state["bn/scale"].tolist() == [1.0, 1.0]
    net = Sequential(fc, Linear("new", n_in=2, n_out=2), Dropout("drop", p=0.5))
    one, other = (compiled(net(X), [X], state=ptml.init(fc, seed=3), seed=seed).state for seed in (5, 6))
    np.testing.assert_array_equal(one["new/W"], ptml.init(net, seed=5)["new/W"])
    assert not np.array_equal(one["new/W"], other["new/W"])


def test_a_mapping_is_no_state(X, fc):
    with pytest.raises(
        TypeError, match=r"state takes a State, a Store or a Program; got dict\. .*State\(mapping\)"
    ):
        compiled(fc(X), [X], state={"fc/W": np.ones((2, 2))})
    with pytest.raises(TypeError, match=r"state takes a State, a Store or a Program; got str"):
        compiled(fc(X), [X], state="weights.safetensors")


def test_a_store_has_a_seed_already(X, fc):
    program = compiled(fc(X), [X])
    for state in (program, program.store):
        with pytest.raises(ValueError, match="A store's seed was given when it was made: leave seed= out"):
            compiled(fc(X), [X], state=state, seed=0)


def test_a_mode_is_given_by_keyword_by_kwargs_or_by_backend(X):
    for options in ({"mode": PYTHON}, {"compile_kwargs": {"mode": PYTHON}}, {"backend": "c", "mode": None}):
        program = ptml.function([X], 2 * X, **options)
        assert program.backend.name == "c"
    with pytest.raises(ValueError, match="Give backend='c' or compile_kwargs"):
        ptml.function([X], X, backend="c", mode=PYTHON)
    with pytest.raises(
        ValueError, match="backend is one of 'numba', 'c', 'jax', 'mlx', 'pytorch'; got 'cuda'"
    ):
        ptml.function([X], X, backend="cuda")


def test_other_options_reach_pytensor(X):
    program = compiled(2 * X, [X], name="twice")
    assert program.function.name == "twice"
    with pytest.raises(TypeError, match="nonsense"):
        compiled(2 * X, [X], nonsense=True)


FAILURES = {
    "a missing input": lambda X, net, store: compiled(net(X), [], state=store, seed=None),
    "a wrong update": lambda X, net, store: compiled(
        net(X), [X], state=store, seed=None, updates={net[0].W: net[0].b}
    ),
    "a collision": lambda X, net, store: compiled(
        Linear("fc", n_in=2, n_out=2)(net(X)), [X], state=store, seed=None
    ),
    "an option": lambda X, net, store: compiled(net(X), [X], state=store, seed=None, nonsense=1),
    "an initializer": lambda X, net, store: compiled(
        Linear("odd", n_in=2, n_out=2, weight_initializer=lambda rng, shape, dtype: np.zeros(3))(net(X)),
        [X],
        state=store,
        seed=None,
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_compile_leaves_the_store_as_it_was(X, failure):
    net = Sequential(Linear("fc", n_in=2, n_out=2), BatchNorm("bn", n_in=2), Dropout("drop", p=0.5))
    store = Store(State({"epoch": np.int64(3)}, roles={"epoch": Role.CLOCK}), seed=4)
    first = compiled(net[0](X), [X], state=store, seed=None)
    before, known = store.state, repr(store)
    with pytest.raises((TypeError, ValueError, MissingInputError)):
        FAILURES[failure](X, net, store)
    assert store.state == before
    assert repr(store) == known
    np.testing.assert_allclose(first(np.zeros((1, 2))), [before["fc/b"]])
    # What failed may be tried again, and draws what it would have drawn.
    again = compiled(net(X), [X], state=store, seed=None)
    assert again.state == ptml.init(net, seed=4)


def test_float32_programs_stay_in_float32(float32):
    X, net = Input("X", (None, 2)), Sequential(Linear("fc", n_in=2, n_out=2), BatchNorm("bn", n_in=2))
    loss = (Dropout("drop", p=0.5)(net(X)) ** 2).mean()
    step = compiled(loss, [X], updates=adam(1e-3)(loss, ptml.slots(net, Role.PARAMETER)))
    assert step(np.ones((3, 2), "float32")).dtype == np.float32
    dtypes = {leaf.address.split("/")[-1]: str(leaf.dtype) for leaf in step.state.leaves}
    assert set(dtypes.values()) == {"float32", "int64", "uint32"}
    assert isinstance(step.state, State)
