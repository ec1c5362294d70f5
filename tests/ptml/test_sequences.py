"""Masks, lengths and states: what layers over time refuse, and when."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.layers import GRU, LSTM, Bidirectional, ElmanCell, Input, LastStep, LSTMCell, Recurrent

X = Input("X", (None, None, 2))
FIXED = Input("fixed", (3, 5, 2))
BOOLS = pt.matrix("mask", dtype="bool")


def lstm(**more):
    return LSTM("lstm", n_in=2, n_hidden=3, **more)


def bools(*shape):
    return pt.tensor("mask", shape=shape, dtype="bool")


def floats(*shape, dtype="float64"):
    return pt.tensor("state", shape=shape, dtype=dtype)


WRONG = [
    (
        lambda: lstm()(pt.matrix("X")),
        ValueError,
        r"lstm \(LSTM\) takes \(batch, time, 2 features\); got 2 axes: \(None, None\)\. Write X\[None\]",
    ),
    (
        lambda: lstm()(pt.vector("X")),
        ValueError,
        r"takes \(batch, time, 2 features\); got 1 axes: \(None,\)",
    ),
    (
        lambda: lstm()(Input("X", (None, 2, 5))),
        ValueError,
        r"axis -1 is 5, where 2 is declared\. Axis 1 has 2: move it to the end",
    ),
    (lambda: lstm()(Input("X", (None, 5, 3))), ValueError, "axis -1 is 3, where 2 is declared"),
    (
        lambda: lstm()(Input("X", (None, None, 2), axes="TNC")),
        ValueError,
        r"lstm \(LSTM\) takes axes NTC \(batch, time, channels\); X has the axes TNC.*transpose\(1, 0, 2\)",
    ),
    (
        lambda: Bidirectional(lstm(), LSTM("back", n_in=2, n_hidden=3))(pt.matrix("X")),
        ValueError,
        r"lstm \(LSTM\) takes \(batch, time",
    ),
    (
        lambda: Recurrent(ElmanCell("cell", n_in=3, n_hidden=1))(X),
        ValueError,
        r"cell \(ElmanCell\) takes .* axis -1 is 2",
    ),
    (lambda: LastStep()(pt.matrix("X")), ValueError, r"LastStep takes \(batch, time, features\); got 2 axes"),
    (lambda: lstm()(Input("ids", (None, None, 2), dtype="int64")), TypeError, "floating-point numbers"),
    (
        lambda: lstm()(X, mask=floats(None, None)),
        TypeError,
        r"takes a mask of booleans.*mask\.astype\(bool\)",
    ),
    (lambda: lstm()(X, mask=pt.lmatrix("m")), TypeError, r"lstm \(LSTM\) takes a mask of booleans"),
    (
        lambda: lstm()(X, mask=bools(None)),
        ValueError,
        r"takes a mask of shape \(batch, time\), its input's without the features; got 1 axes: \(None,\)",
    ),
    (
        lambda: lstm()(X, mask=bools(None, None, None)),
        ValueError,
        r"takes a mask of shape \(batch, time\).*got 3 axes",
    ),
    (
        lambda: lstm()(FIXED, mask=bools(3, 4)),
        ValueError,
        r"takes a mask of shape \(batch, time\), its input's; got \(3, 4\) and \(3, 5\), .* axis -1",
    ),
    (
        lambda: lstm()(FIXED, mask=bools(5, 3)),
        ValueError,
        r"got \(5, 3\) and \(3, 5\), which differ along axis",
    ),
    (
        lambda: LastStep("last")(FIXED, mask=bools(3, 4)),
        ValueError,
        r"last \(LastStep\) takes a mask of shape \(batch, time\)",
    ),
    (
        lambda: lstm()(X, mask=BOOLS, lengths=pt.lvector("n")),
        TypeError,
        "takes a mask or lengths, and was given both",
    ),
    (
        lambda: lstm()(X, lengths=pt.vector("n")),
        TypeError,
        r"takes lengths that are integers.*astype\('int64'\)",
    ),
    (
        lambda: lstm()(X, lengths=pt.lscalar("n")),
        ValueError,
        r"takes lengths of shape \(batch,\), one for each sequence; got 0 axes",
    ),
    (
        lambda: lstm()(X, lengths=pt.lmatrix("n")),
        ValueError,
        r"takes lengths of shape \(batch,\).*got 2 axes",
    ),
    (
        lambda: lstm()(FIXED, lengths=pt.tensor("n", shape=(4,), dtype="int64")),
        ValueError,
        r"takes lengths of shape \(batch,\), its input's; got .* which differ along axis -2",
    ),
    (
        lambda: lstm()(X, floats(None, 3)),
        ValueError,
        r"carries a state of 2 tensors, \(batch, 3\), \(batch, 3\); got 1\. Write initial_state=\(h, c\)",
    ),
    (
        lambda: GRU("gru", n_in=2, n_hidden=3)(X, (floats(None, 3), floats(None, 3))),
        ValueError,
        r"carries a state of 1 tensor, \(batch, 3\); got 2\. Write initial_state=h\.",
    ),
    (
        lambda: lstm(projection=2)(X, (floats(None, 3), floats(None, 3))),
        ValueError,
        r"an initial state of \(batch, 2\); tensor 0 is \(None, 3\): axis 1 is 3, not 2",
    ),
    (
        lambda: lstm()(FIXED, (floats(3, 3), floats(4, 3))),
        ValueError,
        r"an initial state of \(batch, 3\); tensor 1 is \(4, 3\): axis 0 is 4, not 3",
    ),
    (
        lambda: lstm()(X, (floats(1, None, 3), floats(1, None, 3))),
        ValueError,
        r"an initial state of \(batch, 3\); tensor 0 has 3 axes: \(1, None, 3\)",
    ),
    (lambda: lstm()(X, (None, None)), TypeError, r"takes tensors as its state, \(batch, 3\); got None"),
    (
        lambda: lstm(n_layers=2)(X, (floats(None, 3),)),
        ValueError,
        r"takes an initial state for each of its 2 layers, as a tuple; got 1",
    ),
    (
        lambda: Bidirectional(lstm(), LSTM("back", n_in=2, n_hidden=3), name="both")(X, (floats(None, 3),)),
        ValueError,
        r"both \(Bidirectional\) takes an initial state for each direction, \(forward, backward\); got 1",
    ),
    (lambda: lstm()(X, reverse=1), TypeError, "reverse must be True, False or None in a call; got 1"),
    (lambda: lstm()(X, BOOLS), ValueError, "carries a state of 2 tensors"),
]


@pytest.mark.parametrize(("call", "error", "match"), WRONG)
def test_a_mistake_is_an_error_of_the_call_that_names_layer_and_axis(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_numbers_wider_than_the_layer_are_refused():
    with pytensor.config.change_flags(floatX="float32"):
        layer = lstm()
        x = Input("x", (None, None, 2))
        assert layer(x).type.dtype == "float32"
        with pytest.raises(TypeError, match=r"lstm \(LSTM\) has float32 parameters; got .*float64"):
            layer(X)
        with pytest.raises(
            TypeError, match=r"carries a state of float32; tensor 0 .*Write \.astype\('float32'\)"
        ):
            layer(x, (floats(None, 3), floats(None, 3)))


def test_a_narrower_state_is_taken():
    narrow = floats(None, 3, dtype="float32")
    Y, (h, c) = lstm()(X, (narrow, narrow), return_state=True)
    assert {Y.type.dtype, h.type.dtype, c.type.dtype} == {"float64"}


@pytest.fixture(scope="module")
def running():
    lengths, h, c = pt.lvector("lengths"), pt.matrix("h"), pt.matrix("c")
    layer = lstm()
    state = ptml.init(layer, seed=0)
    return {
        "mask": ptml.function([X, BOOLS], layer(X, mask=BOOLS), state=state),
        "lengths": ptml.function([X, lengths], layer(X, lengths=lengths), state=state),
        "state": ptml.function([X, h, c], layer(X, (h, c)), state=state),
        "loop": ptml.function(
            [X, h, c], Recurrent(LSTMCell("lstm", n_in=2, n_hidden=3), name="loop")(X, (h, c)), state=state
        ),
    }


@pytest.mark.parametrize(
    ("what", "given", "match"),
    [
        ("mask", (np.ones((3, 4), bool),), r"lstm \(LSTM\) takes a mask of shape \(batch, time\).*axis -1"),
        ("mask", (np.ones((2, 5), bool),), r"got \(2, 5\) and \(3, 5\), which differ along axis -2"),
        ("lengths", (np.array([5, 6, 1]),), r"lstm \(LSTM\): length 6 is not between 0 and 5, .*time axis"),
        ("lengths", (np.array([5, -1, 1]),), "length -1 is not between 0 and 5"),
        ("lengths", (np.array([5, 1]),), r"takes lengths of shape \(batch,\), its input's"),
        (
            "state",
            (np.zeros((3, 4)), np.zeros((3, 3))),
            r"lstm \(LSTM\) takes an initial state of \(batch, 3\)",
        ),
        ("state", (np.zeros((2, 3)), np.zeros((3, 3))), r"an initial state of \(batch, 3\).*axis -2"),
        (
            "loop",
            (np.zeros((3, 3)), np.zeros((2, 3))),
            r"loop \(Recurrent\) takes an initial state of \(batch, 3\)",
        ),
    ],
)
def test_what_only_the_running_graph_knows_is_an_error_of_its_own(running, what, given, match):
    with pytest.raises(ValueError, match=match):
        running[what](np.zeros((3, 5, 2)), *given)


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_a_length_that_cannot_be_never_gives_numbers(backend):
    lengths = pt.ivector("lengths")
    with pytensor.config.change_flags(floatX="float32"):
        x = Input("x", (None, None, 2))
        layer = GRU("gru", n_in=2, n_hidden=3)
        program = ptml.function([x, lengths], layer(x, lengths=lengths), seed=0, backend=backend)
    values = np.ones((3, 4, 2), "float32")
    assert np.isfinite(np.asarray(program(values, np.array([4, 0, 2], "int32")))).all()
    wrong = np.array([5, 4, -1], "int32")
    if backend in ("numba", "c"):
        with pytest.raises(ValueError, match=r"gru \(GRU\): length 5 is not between 0 and 4"):
            program(values, wrong)
    else:
        y = np.asarray(program(values, wrong))
        assert np.isnan(y[[0, 2]]).all()
        assert np.isfinite(y[1]).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
def test_lengths_may_be_of_any_integer_dtype(dtype):
    lengths = pt.tensor("lengths", shape=(None,), dtype=dtype)
    program = ptml.function([X, lengths], LastStep()(X, lengths=lengths))
    x = np.random.default_rng(0).normal(size=(2, 3, 2))
    np.testing.assert_array_equal(program(x, np.array([3, 1], dtype)), x[[0, 1], [2, 0]])
