"""Programs: calls, what they tell of themselves, inputs that do not fit, timings."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml_state import Role, Slot, State

PYTHON = Mode(linker="py", optimizer="fast_compile")


@pytest.fixture
def X():
    return Input("X", (None, 2))


@pytest.fixture
def net():
    return Sequential(Linear("fc", n_in=2, n_out=3), BatchNorm("bn", n_in=3), Dropout("drop", p=0.5))


def compiled(outputs, inputs=None, **options):
    return ptml.function(inputs, outputs, seed=0, mode=PYTHON, **options)


def test_one_output_is_an_array_and_a_sequence_a_list(X):
    x = np.ones((1, 2))
    assert isinstance(compiled(2 * X, [X])(x), np.ndarray)
    assert isinstance(compiled([2 * X], [X])(x), list)
    assert compiled([], [X], on_unused_input="ignore")(x) == []
    assert compiled(None, [X], on_unused_input="ignore")(x) == []


def test_a_program_tells_of_its_inputs_slots_and_backend(X, net):
    program = compiled(net(X), [X])
    assert program.inputs == (X,)
    assert program.slots == ptml.slots(net)
    assert repr(program) == "<Program(X: float64[?,2]) on c, 7 leaves>"
    assert isinstance(program.function, pytensor.compile.executor.Function)


def test_the_state_has_the_programs_own_leaves_in_the_order_of_the_network(X, net):
    program = compiled(net(X), [X])
    assert isinstance(program.state, State)
    assert list(program.state) == list(ptml.init(net, seed=0))
    assert program.state == ptml.init(net, seed=0)


def test_a_snapshot_does_not_follow_the_program(X, net):
    program = compiled(net(X), [X])
    before = program.state
    kept = {address: np.array(value) for address, value in before.items()}
    for _ in range(3):
        program(np.random.default_rng(0).normal(size=(4, 2)))
    for address, value in kept.items():
        np.testing.assert_array_equal(before[address], value)
    assert before != program.state
    with pytest.raises(ValueError, match="read-only"):
        before["fc/W"][0, 0] = 1.0


def test_leaves_are_ordered_by_network_then_by_when_they_were_made(X):
    rate = Slot("rate", Role.OPTIMIZER, "float64", (), Zeros()).handle
    last = Slot("last", Role.OPTIMIZER, "float64", (), Zeros()).handle
    one, two = Linear("one", n_in=2, n_out=2), Linear("two", n_in=2, n_out=2)
    graph = two(one(X)) * last * rate
    assert list(compiled(graph, [X]).state) == ["one/W", "one/b", "two/W", "two/b", "rate", "last"]


def test_inputs_go_by_position_or_name(X):
    Y = Input("Y", (None, 2))
    program = compiled(X - Y, [X, Y])
    x, y = np.ones((1, 2)), np.zeros((1, 2))
    for result in (program(x, y), program(x, Y=y), program(X=x, Y=y)):
        np.testing.assert_array_equal(result, x)


def test_lists_and_narrower_numbers_are_taken(X):
    program = compiled(2 * X, [X])
    for value in ([[1.0, 2.0]], np.ones((1, 2), "float32"), np.ones((1, 2), "int8"), np.ones((2, 2)).T):
        np.testing.assert_array_equal(program(value), 2 * np.asarray(value))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones((3, 5)), r"X takes float64\[\?,2\]; got float64\[3,5\]\. Reshape it"),
        (np.ones(2), r"X takes float64\[\?,2\]; got float64\[2\]\. Reshape it"),
        (
            np.ones((1, 2), complex),
            r"X takes float64\[\?,2\]; got complex128\[1,2\]\. Cast it: X\.astype\('float64'\)",
        ),
    ],
)
def test_an_input_that_does_not_fit_is_named_with_what_to_write(X, value, message):
    program = compiled(2 * X, [X])
    for call in (
        lambda: program(value),
        lambda: program(X=value),
        lambda: program.pure(program.state, value),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_a_wider_input_is_not_rounded(float32):
    X, labels = Input("X", (None, 2)), Input("labels", (None,), dtype="int64")
    program = compiled(X.sum() + labels.sum(), [X, labels])
    with pytest.raises(
        TypeError, match=r"X takes float32.*got float64.*X\.astype\('float32'\), or declare the input with"
    ):
        program(np.ones((1, 2)) / 3, np.zeros(1, "int64"))
    with pytest.raises(TypeError, match=r"labels takes int64.*got float64.*labels\.astype\('int64'\)"):
        program(np.ones((1, 2), "float32"), np.zeros(1))


def test_a_wrong_input_moves_nothing(X, net):
    program = compiled(net(X), [X])
    before = program.state
    with pytest.raises(TypeError, match="X takes"):
        program(np.ones((3, 5)))
    with pytest.raises(ValueError, match="bn"):
        program(np.ones((1, 2)))
    assert program.state == before


def test_a_wrong_number_of_inputs_is_pytensors_error(X):
    program = compiled(2 * X, [X])
    with pytest.raises(TypeError, match="input"):
        program()
    with pytest.raises(TypeError, match="Too many"):
        program(np.ones((1, 2)), np.ones((1, 2)))


def test_an_error_inside_the_graph_comes_through(X):
    from pytensor.raise_op import CheckAndRaise

    checked = CheckAndRaise(ArithmeticError, "too much")(X, pt.lt(X.sum(), 5))
    program = compiled(checked, [X])
    program(np.ones((1, 2)))
    with pytest.raises(ArithmeticError, match="too much"):
        program(np.full((1, 2), 9.0))


def test_timings_count_the_calls(X):
    program = compiled(2 * X, [X])
    timings = program.timings
    assert timings.compile > 0
    assert (timings.first_call, timings.calls, timings.mean_call) == (None, 0, None)
    for _ in range(3):
        program(np.ones((1, 2)))
    assert timings.first_call > 0
    assert timings.calls == 2
    assert timings.mean_call == timings.total / 2


def test_results_have_the_dtypes_declared(X):
    outputs = [X, X.astype("float32"), X.sum() > 0, X.argmax(axis=1), pt.constant(np.uint8(3))]
    results = compiled(outputs, [X])(np.ones((1, 2)))
    assert [r.dtype for r in results] == [np.dtype(o.type.dtype) for o in outputs]
    assert all(isinstance(r, np.ndarray) for r in results)


def test_a_pure_program_refuses_what_is_outside_of_the_state(X):
    shared = pytensor.shared(1.0, name="mine")
    for program in (
        compiled(X * shared, [X]),
        compiled(X, [X], updates={shared: shared + X.sum()}),
        compiled(X, [X], updates={shared: np.float64(3.0) + 0 * X.sum()}),
    ):
        with pytest.raises(
            ValueError, match=r"shared variables mine, which are no part of a State.*Declare a slot"
        ):
            program.pure(State({}), np.ones((1, 2)))


def test_programs_over_one_store_share_it_and_others_do_not(X, net):
    program = compiled(net(X), [X])
    shared = ptml.function([X], 2 * net(X), state=program, mode=PYTHON)
    apart = ptml.function([X], 2 * net(X), state=program.state, mode=PYTHON)
    x = np.random.default_rng(0).normal(size=(4, 2))
    program(x)
    assert shared.store is program.store
    assert shared.state == program.state
    assert apart.state != program.state


def test_a_failed_call_of_a_graph_with_updates_leaves_the_state(X):
    fc = Linear("fc", n_in=2, n_out=2)
    new = pt.matrix("new")
    program = compiled(fc(X), [X, new], updates={fc.W: new, fc.b: fc.b + 1})
    before = program.state
    with pytest.raises(AssertionError, match="shape"):
        program(np.ones((1, 2)), np.ones((3, 3)))
    assert program.state == before


def test_it_says_what_memory_it_holds():
    X = Input("X", (None, 2))
    program = ptml.function([X], Linear("fc", n_in=2, n_out=3)(X).sum(), seed=0, backend="numba")
    before = program.memory()
    assert (before.state, before.planned, before.batch, before.results) == (9 * 8, 0, 0, 0)
    program(np.ones((16, 2)))
    held = program.memory()
    assert (held.state, held.batch, held.results) == (9 * 8, 16 * 2 * 8, 8)
    assert held.planned >= 16 * 3 * 8
    assert held.peak == held.state + held.planned + held.batch + held.results
    program(np.ones((32, 2)))
    assert program.memory().planned > held.planned
    assert repr(before) == "<Memory: state 72 B, planned 0 B, batch 0 B, results 0 B, peak 72 B>"


def test_what_a_backend_does_not_say_of_memory_is_unknown(X):
    program = compiled(Linear("fc", n_in=2, n_out=3)(X), [X])
    program(np.ones((4, 2)))
    held = program.memory()
    assert held.state == 9 * 8
    assert (held.planned, held.peak) == (None, None)
    assert "planned unknown" in repr(held)


def test_the_collector_rests_while_a_graph_is_compiled_and_is_as_it_was_after_it(X):
    import gc

    compiled(2 * X, [X])
    assert gc.isenabled()
    gc.disable()
    try:
        compiled(2 * X, [X])
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(TypeError):
        compiled(2 * X, [X], updates={X: X})
    assert gc.isenabled()
