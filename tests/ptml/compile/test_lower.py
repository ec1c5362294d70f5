"""Lowering: variables in the place of slots, and what may be written to them."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import graph_inputs

import ptml
from ptml.compile.lower import checked_updates, lower
from ptml.compile.thread import thread
from ptml.initializers import Zeros
from ptml.layers import Input, Linear
from ptml_state import Role, Slot

PYTHON = Mode(linker="py", optimizer="fast_compile")


@pytest.fixture
def fc():
    return Linear("fc", n_in=2, n_out=3)


def test_slots_are_replaced_and_the_graph_given_stays_as_it_was(fc):
    X = Input("X", (None, 2))
    W, b = fc.W.type("W"), fc.b.type("b")
    threaded = thread([fc(X)])
    [before] = threaded.outputs
    [after] = lower(threaded, {fc.W.slot: W, fc.b.slot: b}).outputs
    roots = {root for root in graph_inputs([after]) if not isinstance(root, Constant)}
    assert roots == {X, W, b}
    assert fc.W in set(graph_inputs([before]))


def test_slots_and_inputs_may_themselves_be_outputs(fc):
    X, W = Input("X", (None, 2)), fc.W.type("W")
    assert lower(thread([X, fc.W]), {fc.W.slot: W}).outputs == [X, W]
    program = ptml.function([X], [X, fc.W, fc.W], seed=0, mode=PYTHON)
    x, W_value, again = program(np.ones((1, 2)))
    np.testing.assert_array_equal(x, np.ones((1, 2)))
    np.testing.assert_array_equal(W_value, program.state["fc/W"])
    np.testing.assert_array_equal(W_value, again)


def test_what_a_program_gives_does_not_alias_its_state(fc):
    program = ptml.function([], [fc.W, fc.W.T], updates={fc.W: fc.W + 1}, seed=0, mode=PYTHON)
    before = program.state["fc/W"]
    W, transposed = program()
    W[:] = 0
    transposed[:] = 0
    np.testing.assert_array_equal(program.state["fc/W"], before + 1)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            lambda W: W.astype("float32"),
            r"The new value of 'fc/W' is float32\[2,3\], and float64\[2,3\] is declared by Linear\('fc', .*\)"
            r".*: write \.astype\('float64'\)",
        ),
        (lambda W: W.sum(axis=0), r"The new value of 'fc/W' is float64\[3\], and float64\[2,3\] is declared"),
        (lambda W: W.T, r"The new value of 'fc/W' is float64\[3,2\], and float64\[2,3\] is declared"),
        (
            lambda W: pt.ones((), dtype="int64"),
            r"The new value of 'fc/W' is int64\[\], and float64\[2,3\] is declared",
        ),
    ],
)
def test_an_update_of_another_type_is_refused_by_address(fc, new, message):
    with pytest.raises(TypeError, match=message):
        ptml.function([], [], updates={fc.W: new(fc.W)}, seed=0, mode=PYTHON)


def test_an_update_whose_shape_only_the_run_knows_is_checked_there(fc):
    new = pt.matrix("new")
    program = ptml.function([new], [], updates={fc.W: new}, seed=0, mode=PYTHON)
    program(np.full((2, 3), 2.0))
    assert (program.state["fc/W"] == 2.0).all()
    with pytest.raises(AssertionError, match="shape"):
        program(np.ones((3, 2)))
    assert (program.state["fc/W"] == 2.0).all()


def test_a_number_is_an_update_of_a_scalar():
    best = Slot("best", Role.OPTIMIZER, "float64", (), Zeros()).handle
    program = ptml.function([], best, updates={best: np.float64(3.0)}, seed=0, mode=PYTHON)
    assert (program(), program()) == (0.0, 3.0)


def test_checked_updates_have_their_slots_very_type(fc):
    unknown = pt.matrix("unknown")
    [new] = checked_updates(thread([], updates={fc.W: unknown}), {fc.W.slot: "fc/W"}).updates.values()
    assert new.type == fc.W.type


def test_a_transform_is_named_with_the_state_that_it_writes_wrongly(fc):
    from ptml.optim import Transform, chain, sgd, state_for

    class Wrong(Transform):
        def apply(self, updates, parameters):
            states = [state_for(p, "wrong/mean") for p in parameters]
            return updates.with_state({s: s.astype("float32") for s in states})

    loss = (fc(Input("X", (None, 2))) ** 2).mean()
    with pytest.raises(
        TypeError, match=r"'wrong/mean/fc/W' is float32\[2,3\], and float64\[2,3\] is declared by Wrong\(\)"
    ):
        ptml.optim.compile_train(loss, chain(Wrong(), sgd(0.1)), compile_kwargs={"mode": PYTHON})
    assert pytensor.config.floatX == "float64"
