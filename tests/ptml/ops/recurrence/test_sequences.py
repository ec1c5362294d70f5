"""Sequence ops: against NumPy step by step, by kernels, by graphs and on every backend."""

from __future__ import annotations

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.backends.modes import backend_for
from ptml.backends.numba.plan import PLAN
from ptml.fused import EXPAND
from ptml.ops.recurrence import gru_sequence, lstm_sequence, rnn_sequence
from ptml.ops.recurrence.gru import GRUGradient, GRUSequence
from ptml.ops.recurrence.lstm import LSTMGradient, LSTMSequence
from ptml.ops.recurrence.rnn import RNNGradient, RNNSequence

PYTHON = Mode(linker="py", optimizer="fast_compile")
#: Runs fused ops by what they do themselves: in Python, by their graphs.
BY_GRAPH = Mode(linker="py", optimizer=None).excluding(EXPAND)
OPS = (GRUGradient, GRUSequence, LSTMGradient, LSTMSequence, RNNGradient, RNNSequence)

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step_of(kind, v, options):
    """Give one step of a kind from an input and a state to the next state, in NumPy."""

    def lstm(x, h, c):
        i, f, g, o = np.split(x + h @ v["W"], 4, axis=-1)
        w = [v.get(name, 0) for name in ("w_i", "w_f", "w_o")]
        cell = sigmoid(f + w[1] * c) * c + sigmoid(i + w[0] * c) * np.tanh(g)
        hidden = sigmoid(o + w[2] * cell) * np.tanh(cell)
        return (hidden @ v["W_hr"] if "W_hr" in v else hidden), cell

    def gru(x, h):
        (x_r, x_z, x_n), (a_r, a_z, a_n) = np.split(x, 3, axis=-1), np.split(h @ v["W"], 3, axis=-1)
        z = sigmoid(x_z + a_z)
        return ((1 - z) * np.tanh(x_n + sigmoid(x_r + a_r) * (a_n + v.get("b", 0))) + z * h,)

    def rnn(x, h):
        a = x + h @ v["W"]
        return (np.tanh(a) if options.get("activation") != "relu" else np.where(a.real > 0, a, 0),)

    return {"lstm": lstm, "gru": gru, "rnn": rnn}[kind]


@attrs.frozen
class Case:
    """A sequence with its options.

    Attributes
    ----------
    kind : {"lstm", "gru", "rnn"}
    options : dict
        ``masked``, ``reverse``, ``peepholes``, ``projects``, ``biased``, ``activation``.
    """

    kind: str
    options: dict

    def __str__(self):
        return "-".join(
            [self.kind, *(f"{k}={v}" if k == "activation" else k for k, v in self.options.items())]
        )

    def values(self, B=3, T=4, H=2, dtype="float64", seed=0):
        """Draw the float inputs, and the mask."""
        rng, P = np.random.default_rng(seed), 3 if "projects" in self.options else H
        shapes = {"x": (B, T, GATES[self.kind] * H), "W": (P, GATES[self.kind] * H), "h0": (B, P)}
        if self.kind == "lstm":
            shapes["c0"] = (B, H)
        if "peepholes" in self.options:
            shapes |= dict.fromkeys(("w_i", "w_f", "w_o"), (H,))
        if "projects" in self.options:
            shapes["W_hr"] = (H, P)
        if "biased" in self.options:
            shapes["b"] = (H,)
        values = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
        return values, (rng.random((B, T)) < 0.6 if "masked" in self.options else None)

    def build(self, v, mask):
        """Apply the function to variables."""
        rest = {"mask": mask, "reverse": "reverse" in self.options}
        if self.kind == "gru":
            return gru_sequence(v["x"], v["W"], v.get("b"), v["h0"], **rest)
        if self.kind == "rnn":
            return rnn_sequence(
                v["x"], v["W"], v["h0"], activation=self.options.get("activation", "tanh"), **rest
            )
        peepholes = tuple(v[name] for name in ("w_i", "w_f", "w_o")) if "w_i" in v else None
        return lstm_sequence(
            v["x"], v["W"], v["h0"], v["c0"], peepholes=peepholes, W_hr=v.get("W_hr"), **rest
        )

    def reference(self, v, mask):
        """Compute the same step by step."""
        step, T = step_of(self.kind, v, self.options), v["x"].shape[1]
        states = [v[name] for name in ("h0", "c0") if name in v]
        outputs = np.zeros((*v["x"].shape[:2], states[0].shape[1]), np.result_type(*v.values()))
        for t in reversed(range(T)) if "reverse" in self.options else range(T):
            new = step(v["x"][:, t], *states)
            kept = True if mask is None else mask[:, t, None]
            states = [np.where(kept, a, b) for a, b in zip(new, states, strict=True)]
            outputs[:, t] = states[0]
        return [outputs, *states]


def case(kind, *flags, **options):
    return Case(kind, {**dict.fromkeys(flags, True), **options})


CASES = [
    case("lstm"),
    case("lstm", "masked", "reverse"),
    case("lstm", "masked", "peepholes"),
    case("lstm", "projects", "reverse"),
    case("lstm", "masked", "reverse", "peepholes", "projects"),
    case("gru"),
    case("gru", "reverse", "biased"),
    case("gru", "masked", "biased"),
    case("rnn"),
    case("rnn", "masked", "reverse"),
    case("rnn", "masked", activation="relu"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def variables(values, mask, dtype=None):
    """Give variables whose batch and length are not known."""
    free = {"x": 2, "h0": 1, "c0": 1}
    symbols = {
        name: pt.tensor(
            name,
            dtype=dtype or str(value.dtype),
            shape=(*[None] * free.get(name, 0), *value.shape[free.get(name, 0) :]),
        )
        for name, value in values.items()
    }
    return symbols, None if mask is None else pt.matrix("mask", dtype="bool")


def weighed(outputs, seed=7):
    """Make one number of some outputs, to which each of their numbers adds something of its own."""
    rng = np.random.default_rng(seed)
    factors = [pt.constant(rng.normal(size=(5, 9, 4)[:: 1 if o.ndim == 3 else 2])) for o in outputs]
    cut = [
        f[tuple(slice(size) for size in o.shape)].astype(o.dtype)
        for f, o in zip(factors, outputs, strict=True)
    ]
    return sum((o * f).sum() for o, f in zip(outputs, cut, strict=True)), [f.data for f in factors]


def weighed_arrays(outputs, factors):
    cut = [f[tuple(slice(size) for size in o.shape)] for f, o in zip(factors, outputs, strict=True)]
    return sum((o * f).sum() for o, f in zip(outputs, cut, strict=True))


def compiled(case, values, mask, mode, *, second=False):
    """Give a function of the outputs and gradients of a case, its arguments, and the factors of its loss."""
    symbols, mask_symbol = variables(values, mask)
    inputs = [*symbols.values(), *([] if mask is None else [mask_symbol])]
    outputs = case.build(symbols, mask_symbol)
    loss, factors = weighed(outputs)
    gradients = pytensor.grad(loss, list(symbols.values()))
    if second:
        ways = [pt.constant(np.random.default_rng(3).normal(size=v.shape)) for v in values.values()]
        slope = loss + sum((g * way).sum() for g, way in zip(gradients, ways, strict=True))
        results = [slope, *pytensor.grad(slope, list(symbols.values()))]
    else:
        results = [*outputs, *gradients]
    f = pytensor.function(inputs, results, mode=mode)
    return f, [*values.values(), *([] if mask is None else [mask])], factors


def slopes(case, values, mask, factors):
    """Differentiate the reference, by steps along the imaginary axis."""
    found = []
    for name, value in values.items():
        slope = np.zeros_like(value)
        for place in np.ndindex(*value.shape):
            moved = value.astype(complex)
            moved[place] += 1e-30j
            outputs = case.reference({**values, name: moved}, mask)
            slope[place] = weighed_arrays(outputs, factors).imag / 1e-30
        found.append(slope)
    return found


def close(results, wanted, **how):
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(result), want, **how)


@each_case
def test_kernels_give_what_numpy_gives_step_by_step_and_its_slopes(case):
    values, mask = case.values()
    f, given, factors = compiled(case, values, mask, PLAN)
    results = f(*given)
    (table,) = f.vm.tables.values()
    assert table.step is None
    assert sum(isinstance(node.op, OPS) for node, _ in table._nodes) >= 2
    wanted = case.reference(values, mask)
    close(results[: len(wanted)], wanted, rtol=1e-12, atol=1e-13)
    close(results[len(wanted) :], slopes(case, values, mask, factors), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", [CASES[k] for k in (4, 6, 7, 9, 10)], ids=str)
def test_the_graph_gives_what_numpy_gives_step_by_step_and_its_slopes(case):
    values, mask = case.values()
    f, given, factors = compiled(case, values, mask, PYTHON)
    wanted = [*case.reference(values, mask), *slopes(case, values, mask, factors)]
    close(f(*given), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", [CASES[k] for k in (0, 4, 7, 9)], ids=str)
def test_kernels_write_for_the_gradient_what_the_graph_says(case):
    values, mask = case.values(B=2, T=3)
    symbols, mask_symbol = variables(values, mask)
    inputs = [*symbols.values(), *([] if mask is None else [mask_symbol])]
    kept = case.build(symbols, mask_symbol)[0].owner.outputs
    given = [*values.values(), *([] if mask is None else [mask])]
    by_kernel, by_graph = (pytensor.function(inputs, kept, mode=mode)(*given) for mode in (PLAN, BY_GRAPH))
    assert len(kept) > 2
    close(by_kernel, by_graph, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", [CASES[k] for k in (4, 7, 9)], ids=str)
def test_second_derivatives_are_those_of_the_first(case):
    values, mask = case.values(B=2, T=3)
    f, given, _ = compiled(case, values, mask, PLAN, second=True)
    found = f(*given)[1:]
    for k, name in enumerate(values):
        for place in [(0,) * given[k].ndim, tuple(size - 1 for size in given[k].shape)]:
            ends = []
            for sign in (1, -1):
                moved = given[k].copy()
                moved[place] += sign * 1e-5
                ends.append(f(*given[:k], moved, *given[k + 1 :])[0])
            np.testing.assert_allclose(
                found[k][place], (ends[0] - ends[1]) / 2e-5, rtol=2e-6, atol=1e-8, err_msg=name
            )


@each_case
def test_float32_stays_float32(case):
    values, mask = case.values(B=5, T=9, H=4, dtype="float32")
    f, given, _ = compiled(case, values, mask, PLAN)
    results = f(*given)
    assert {str(result.dtype) for result in results} == {"float32"}
    wide = {name: value.astype("float64") for name, value in values.items()}
    wanted = case.reference(wide, mask)
    close(results[: len(wanted)], wanted, rtol=2e-5, atol=2e-6)


@each_case
def test_any_batch_and_length_go_none_included(case):
    values, mask = case.values()
    f, _, factors = compiled(case, values, mask, PLAN)
    for B, T in ((3, 0), (1, 4), (0, 2), (4, 1)):
        values, mask = case.values(B=B, T=T)
        results = f(*values.values(), *([] if mask is None else [mask]))
        wanted = case.reference(values, mask)
        close(results[: len(wanted)], wanted, rtol=1e-12, atol=1e-13)
        close(results[len(wanted) :], slopes(case, values, mask, factors), rtol=1e-11, atol=1e-12)


def test_sizes_that_only_the_call_tells_are_checked():
    x, W, h0 = pt.tensor3("x"), pt.matrix("W"), pt.matrix("h0")
    f = pytensor.function([x, W, h0], rnn_sequence(x, W, h0), mode=PLAN)
    with pytest.raises(ValueError, match=r"matmul|mismatch|broadcast|size"):
        f(np.zeros((2, 3, 4)), np.zeros((4, 4)), np.zeros((3, 4)))


@pytest.mark.parametrize("case", [CASES[k] for k in (1, 4, 7, 9)], ids=str)
def test_padding_may_hold_anything(case):
    values, mask = case.values()
    mask[:, 0], mask[:, -1] = False, False
    f, given, _ = compiled(case, values, mask, PLAN)
    g, _, _ = compiled(case, values, mask, PYTHON)
    wanted = f(*given)
    spoiled = values["x"].copy()
    spoiled[~mask] = np.nan
    for run in (f, g):
        close(run(spoiled, *given[1:]), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", GATES)
def test_a_masked_step_keeps_the_state_and_gives_it_out(kind):
    one = case(kind, "masked")
    values, _ = one.values(T=3)
    mask = np.array([[True, False, False]] * 3)
    symbols, mask_symbol = variables(values, mask)
    outputs, last, *_ = pytensor.function(
        [*symbols.values(), mask_symbol], one.build(symbols, mask_symbol), mode=PLAN
    )(*values.values(), mask)
    for t in (1, 2):
        np.testing.assert_array_equal(outputs[:, t], outputs[:, 0])
    np.testing.assert_array_equal(last, outputs[:, 0])


@pytest.mark.parametrize("kind", GATES)
def test_reversed_is_forward_on_the_sequence_turned_round(kind):
    values, _ = case(kind).values()
    symbols, _ = variables(values, None)
    forward = case(kind).build({**symbols, "x": symbols["x"][:, ::-1]}, None)
    backward = case(kind, "reverse").build(symbols, None)
    results = pytensor.function(list(symbols.values()), [*forward, *backward], mode=PLAN)(*values.values())
    n = len(forward)
    np.testing.assert_array_equal(results[n], results[0][:, ::-1])
    for first, second in zip(results[1:n], results[n + 1 :], strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", GATES)
def test_a_sequence_in_two_pieces_is_one_whose_state_is_passed_on(kind):
    values, _ = case(kind).values(T=6)
    symbols, _ = variables(values, None)
    names = [name for name in ("h0", "c0") if name in values]
    whole = case(kind).build(symbols, None)
    first = case(kind).build({**symbols, "x": symbols["x"][:, :2]}, None)
    second = case(kind).build(
        {**symbols, "x": symbols["x"][:, 2:], **dict(zip(names, first[1:], strict=True))}, None
    )
    pieces = [pt.concatenate([first[0], second[0]], axis=1), *second[1:]]
    n = len(whole)
    results = pytensor.function(list(symbols.values()), [*whole, *pieces], mode=PLAN)(*values.values())
    close(results[n:], results[:n], rtol=1e-12, atol=1e-13)


def test_operands_may_lie_anywhere():
    one = case("lstm", "masked")
    values, mask = one.values()
    f, given, _ = compiled(one, values, mask, PLAN)
    wanted = f(*given)
    turned = [np.asfortranarray(value) for value in given]
    strided = [np.repeat(value, 2, axis=0)[::2] for value in given]
    for others in (turned, strided):
        close(f(*others), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", GATES)
def test_only_what_is_read_is_given_back(kind):
    values, _ = case(kind).values()
    symbols, _ = variables(values, None)
    _, *states = case(kind).build(symbols, None)
    by_input = pytensor.grad(states[-1].sum(), symbols["x"])
    found = pytensor.function(list(symbols.values()), [states[0], by_input], mode=PLAN)(*values.values())
    wanted = case(kind).reference(values, None)
    np.testing.assert_allclose(found[0], wanted[1], rtol=1e-12)
    moved = {**values, "x": values["x"].astype(complex)}
    moved["x"][1, 0, 0] += 1e-30j
    slope = case(kind).reference(moved, None)[-1].sum().imag / 1e-30
    np.testing.assert_allclose(found[1][1, 0, 0], slope, rtol=1e-11)


@pytest.mark.parametrize("kind", GATES)
def test_large_work_is_shared_out_and_gives_the_same_numbers(kind):
    one = case(kind, "masked", "reverse")
    values, mask = one.values(B=37, T=24, H=48, dtype="float32")
    values["W"] *= 0.1
    symbols, mask_symbol = variables(values, mask)
    outputs = one.build(symbols, mask_symbol)
    gradients = pytensor.grad((outputs[0] ** 2).sum(), list(symbols.values()))
    before, results = ptml.get_threads(), []
    try:
        for n in (1, 2):
            ptml.set_threads(n)
            f = pytensor.function([*symbols.values(), mask_symbol], [*outputs, *gradients], mode=PLAN)
            results.append(f(*values.values(), mask))
    finally:
        ptml.set_threads(before)
    close(results[1], results[0], rtol=1e-5, atol=1e-4)
    wide = {name: value.astype("float64") for name, value in values.items()}
    close(results[1][: len(outputs)], one.reference(wide, mask), rtol=1e-4, atol=1e-5)


def test_every_backend_gives_the_same(backend):
    dtype = "float32" if backend == "mlx" else "float64"
    engine = backend_for(backend)
    engine.load()
    cases = [case("lstm", "masked", "reverse"), case("gru", "biased"), case("rnn")]
    every, inputs, given, wanted = [], [], {4: [], 0: []}, {4: [], 0: []}
    for one in cases:
        values, mask = one.values(dtype=dtype)
        symbols, mask_symbol = variables(values, mask)
        inputs += [*symbols.values(), *([] if mask is None else [mask_symbol])]
        outputs = one.build(symbols, mask_symbol)
        loss, factors = weighed(outputs)
        every += [*outputs, pytensor.grad(loss, symbols["W"])]
        for T in (4, 0):
            values, mask = one.values(dtype=dtype, T=T)
            given[T] += [*values.values(), *([] if mask is None else [mask])]
            wide = {name: value.astype("float64") for name, value in values.items()}
            reference = one.reference(wide, mask)
            wanted[T] += [*reference, slopes(one, wide, mask, factors)[1]]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if backend == "mlx" else {"rtol": 1e-10, "atol": 1e-11}
    with engine.context():
        f = pytensor.function(inputs, every, mode=engine.mode)
        for T, arrays in given.items():
            results = [np.asarray(result) for result in f(*arrays)]
            assert {str(result.dtype) for result in results} == {dtype}
            close(results, wanted[T], **tolerance)


def test_what_an_op_knows_of_its_graph_is_so():
    for one in (CASES[4], CASES[7], CASES[9]):
        values, mask = one.values()
        symbols, mask_symbol = variables(values, mask)
        outputs = one.build(symbols, mask_symbol)
        node = outputs[0].owner
        gradient = pytensor.grad(outputs[0].sum(), symbols["x"]).owner
        for apply in (node, gradient):
            built = apply.op.build(*apply.inputs)
            assert [v.type.dtype for v in built] == [v.type.dtype for v in apply.outputs]
            for mine, graphs in zip(apply.outputs, built, strict=True):
                sizes = zip(mine.type.shape, graphs.type.shape, strict=True)
                assert all(None in pair or pair[0] == pair[1] for pair in sizes)


X, W, H0 = (pt.tensor(n, shape=s) for n, s in (("x", (None, None, 8)), ("W", (2, 8)), ("h0", (None, 2))))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: lstm_sequence(pt.matrix(), W, H0, H0), ValueError, r"projected as \(batch, time, gates"),
        (lambda: lstm_sequence(X, pt.tensor3(), H0, H0), ValueError, "W_hh .* got 3 axes"),
        (lambda: lstm_sequence(X, W, pt.zeros((1, 3)), H0), ValueError, r"h0 .* axis 1 \(hidden\) has 3"),
        (lambda: lstm_sequence(X, pt.zeros((2, 6)), H0, H0), ValueError, "W_hh .* has 6 .* projected has 8"),
        (lambda: lstm_sequence(X, pt.zeros((3, 8)), pt.zeros((1, 3)), pt.zeros((1, 3))), ValueError, "4 num"),
        (lambda: lstm_sequence(X, W, H0, H0, pt.matrix()), TypeError, "mask of booleans.* Write mask > 0"),
        (lambda: lstm_sequence(X, W, H0, H0, pt.bvector() > 0), ValueError, r"mask as \(batch, time\)"),
        (lambda: lstm_sequence(X.astype(int), W, H0, H0), TypeError, "projected is int64"),
        (lambda: lstm_sequence(X, W, H0, H0, W_hr=pt.zeros((2, 3))), ValueError, "W_hr .*projection"),
        (lambda: lstm_sequence(X, W, H0, H0, peepholes=(H0, H0, H0)), ValueError, "W_ci"),
        (lambda: gru_sequence(X, W, None, H0), ValueError, "3 numbers for each hidden unit; got 8"),
        (lambda: gru_sequence(X, pt.zeros((2, 6)), H0, H0), ValueError, "W_hh"),
        (lambda: rnn_sequence(X, W, H0, "sine"), ValueError, "activation='tanh' or .* got 'sine'"),
        (
            lambda: rnn_sequence(pt.zeros((2, 3, 2)), pt.zeros((2, 2)), H0, mask=pt.zeros((2, 4)) > 0),
            ValueError,
            r"axis 1 \(time\) has 4 elements, where projected has 3",
        ),
    ],
)
def test_a_mistake_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_floats_of_several_dtypes_become_the_widest():
    outputs, _ = rnn_sequence(pt.ftensor3(), pt.dmatrix(), pt.fmatrix())
    assert outputs.type.dtype == "float64"
