"""What every layer must do, as a table that a layer joins by a line of `CASES`.

The references are written in NumPy from the definitions, and take complex numbers: a step along the imaginary
axis gives their gradients to the last digits. All layers stand in one program for each backend.
"""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytest

import ptml
from ptml import activations, layers
from ptml.activations import SELU_ALPHA, SELU_SCALE, Tanh
from ptml.bits import numbers
from ptml.layers import (
    AlphaDropout,
    BatchNorm,
    Dropout,
    DropPath,
    Embedding,
    Flatten,
    GroupNorm,
    Input,
    InstanceNorm,
    Lambda,
    LayerNorm,
    LearnedPositions,
    Linear,
    LowRank,
    Parallel,
    Repeat,
    Residual,
    RMSNorm,
    RotaryPositions,
    Sequential,
    SinusoidalPositions,
    SpatialDropout,
)
from ptml_state import Role


class Case(NamedTuple):
    """One layer: how to make it, what it is given, and what it must compute."""

    layer: Callable[[], Any]
    #: The shape of the input, whose first axis is the batch.
    shape: tuple[int, ...]
    #: ``reference(leaves, x) -> y`` of training.
    reference: Callable[[dict, np.ndarray], np.ndarray]
    #: The addresses of the leaves, in order.
    leaves: tuple[str, ...] = ()
    #: The same of prediction, where that is another function.
    predicted: Callable[[dict, np.ndarray], np.ndarray] | None = None
    #: How many rows the table has that integers are looked up in.
    rows: int | None = None
    #: The smallest shape that is taken, where it is not all ones before the features.
    smallest: tuple[int, ...] | None = None
    #: Whether a batch of no examples is taken.
    takes_none: bool = True
    #: Which sizes the layer must know before it runs.
    known: tuple[int, ...] = ()


def _identity(p, x):
    return x


def _mask(key, p, shape):
    words = numbers([int(key[0]), int(key[1]), 0, 0], 0, int(np.prod(shape)), "uint32")
    return (words < (1 - p) * 2**32).reshape(shape)


def _standardized(x, axes, epsilon=1e-6):
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)


def _linear(name):
    return lambda p, x: x @ p[f"{name}/W"] + p[f"{name}/b"]


def _batch_norm(name):
    def reference(p, x):
        axes = tuple(range(x.ndim - 1))
        return _standardized(x, axes, 1e-5) * p.get(f"{name}/scale", 1.0) + p.get(f"{name}/b", 0.0)

    return reference


def _group_norm(p, x):
    grouped = x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    y = _standardized(grouped, (*range(1, x.ndim - 1), x.ndim)).reshape(x.shape)
    return y * p["group/scale"] + p["group/b"]


def _dropout(name, p, shape_of):
    return lambda leaves, x: x * _mask(leaves[f"{name}/key"], p, shape_of(x.shape)) / (1 - p)


def _alpha_dropout(leaves, x):
    q, low = 0.75, -SELU_ALPHA * SELU_SCALE
    kept = _mask(leaves["alpha/key"], 1 - q, x.shape)
    # Equations for mean 0 and variance 1 of a mixture: E = q * 0 + (1-q) * low, and so on.
    mean, variance = (1 - q) * low, q * (1 + low**2 * (1 - q))
    return (np.where(kept, x, low) - mean) / np.sqrt(variance)


def _embedding(name, padding=None):
    def reference(p, ids):
        y = p[f"{name}/W"][ids]
        return y if padding is None else y * (ids != padding)[..., None]

    return reference


def _sinusoids(length, n):
    table = np.empty((length, n))
    for t in range(length):
        for k in range(n):
            angle = t / 10000 ** ((k - k % 2) / n)
            table[t, k] = np.cos(angle) if k % 2 else np.sin(angle)
    return table


def _rotary(interleaved):
    def reference(p, x):
        length, n = x.shape[-2:]
        y = x.copy()
        for t in range(length):
            for i in range(n // 2):
                angle = t / 10000 ** (2 * i / n)
                a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + n // 2)
                y[..., t, a] = x[..., t, a] * np.cos(angle) - x[..., t, b] * np.sin(angle)
                y[..., t, b] = x[..., t, a] * np.sin(angle) + x[..., t, b] * np.cos(angle)
        return y

    return reference


def _repeated(p, x):
    for k in range(3):
        x = np.tanh(x @ p[f"block{k}/fc/W"] + p[f"block{k}/fc/b"])
    return x


def _named(name, *leaves):
    return tuple(f"{name}/{leaf}" for leaf in leaves)


def _square(X):
    return X * X


BN = ("scale", "b", "running_mean", "running_var")

CASES = {
    "linear": Case(
        lambda: Linear("linear", n_in=3, n_out=2), (4, 3), _linear("linear"), _named("linear", "W", "b")
    ),
    "linear_of_3_axes": Case(
        lambda: Linear("deep", n_in=3, n_out=2), (4, 5, 3), _linear("deep"), _named("deep", "W", "b")
    ),
    "low_rank": Case(
        lambda: LowRank("lora", base=Linear("base", n_in=3, n_out=3), rank=2, alpha=4.0),
        (4, 3),
        lambda p, x: x @ p["base/W"] + p["base/b"] + 2 * x @ p["lora/A"] @ p["lora/B"],
        ("lora/A", "lora/B", "base/W", "base/b"),
    ),
    "batch_norm": Case(
        lambda: BatchNorm("bn", n_in=3),
        (4, 3),
        _batch_norm("bn"),
        _named("bn", *BN),
        predicted=lambda p, x: (
            (x - p["bn/running_mean"]) / np.sqrt(p["bn/running_var"] + 1e-5) * p["bn/scale"] + p["bn/b"]
        ),
        smallest=(2, 3),
        takes_none=False,
    ),
    "batch_norm_without_statistics": Case(
        lambda: BatchNorm("untracked", n_in=3, track_running_stats=False),
        (4, 2, 3),
        _batch_norm("untracked"),
        _named("untracked", "scale", "b"),
        smallest=(1, 2, 3),
        takes_none=False,
    ),
    "batch_norm_without_leaves": Case(
        lambda: BatchNorm("bare", n_in=3, track_running_stats=False, affine=False),
        (4, 3),
        _batch_norm("bare"),
        smallest=(2, 3),
        takes_none=False,
    ),
    "layer_norm": Case(
        lambda: LayerNorm("ln", n_in=5),
        (3, 2, 5),
        lambda p, x: _standardized(x, -1) * p["ln/scale"] + p["ln/b"],
        _named("ln", "scale", "b"),
    ),
    "layer_norm_without_bias": Case(
        lambda: LayerNorm("lnw", n_in=5, bias=False, epsilon=0.1),
        (3, 5),
        lambda p, x: _standardized(x, -1, 0.1) * p["lnw/scale"],
        ("lnw/scale",),
    ),
    "layer_norm_without_leaves": Case(
        lambda: LayerNorm("ln0", n_in=5, affine=False), (3, 5), lambda p, x: _standardized(x, -1)
    ),
    "rms_norm": Case(
        lambda: RMSNorm("rms", n_in=4),
        (3, 2, 4),
        lambda p, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["rms/scale"],
        ("rms/scale",),
    ),
    "group_norm": Case(
        lambda: GroupNorm("group", n_groups=2, n_in=4),
        (2, 3, 2, 4),
        _group_norm,
        _named("group", "scale", "b"),
    ),
    "instance_norm": Case(
        lambda: InstanceNorm("instance", n_in=2),
        (3, 2, 2, 2),
        lambda p, x: _standardized(x, (1, 2)) * p["instance/scale"] + p["instance/b"],
        _named("instance", "scale", "b"),
        smallest=(1, 1, 2, 2),
    ),
    "dropout": Case(
        lambda: Dropout("drop", p=0.25),
        (4, 5),
        _dropout("drop", 0.25, lambda shape: shape),
        ("drop/key",),
        predicted=_identity,
    ),
    "spatial_dropout": Case(
        lambda: SpatialDropout("spatial", p=0.25),
        (4, 3, 2, 5),
        _dropout("spatial", 0.25, lambda shape: (shape[0], 1, 1, shape[3])),
        ("spatial/key",),
        predicted=_identity,
    ),
    "drop_path": Case(
        lambda: DropPath("path", p=0.25),
        (8, 2, 3),
        _dropout("path", 0.25, lambda shape: (shape[0], 1, 1)),
        ("path/key",),
        predicted=_identity,
    ),
    "alpha_dropout": Case(
        lambda: AlphaDropout("alpha", p=0.25), (4, 5), _alpha_dropout, ("alpha/key",), predicted=_identity
    ),
    "flatten": Case(Flatten, (3, 2, 4), lambda p, x: x.reshape(len(x), -1) if x.size else np.zeros((0, 4))),
    "sequential": Case(
        lambda: Sequential(Linear("s1", n_in=3, n_out=4), Tanh(), Linear("s2", n_in=4, n_out=2)),
        (3, 3),
        lambda p, x: _linear("s2")(p, np.tanh(_linear("s1")(p, x))),
        ("s1/W", "s1/b", "s2/W", "s2/b"),
    ),
    "residual": Case(
        lambda: Residual(LayerNorm("pre", n_in=3), Linear("res", n_in=3, n_out=3)),
        (3, 2, 3),
        lambda p, x: x + _linear("res")(p, _standardized(x, -1) * p["pre/scale"] + p["pre/b"]),
        ("pre/scale", "pre/b", "res/W", "res/b"),
    ),
    "residual_with_a_shortcut": Case(
        lambda: Residual(Linear("wide", n_in=2, n_out=3), shortcut=Linear("short", n_in=2, n_out=3)),
        (3, 2),
        lambda p, x: _linear("short")(p, x) + _linear("wide")(p, x),
        ("wide/W", "wide/b", "short/W", "short/b"),
    ),
    "parallel": Case(
        lambda: Parallel(Linear("left", n_in=3, n_out=2), Linear("right", n_in=3, n_out=1)),
        (3, 3),
        lambda p, x: np.concatenate([_linear("left")(p, x), _linear("right")(p, x)], axis=-1),
        ("left/W", "left/b", "right/W", "right/b"),
    ),
    "parallel_product": Case(
        lambda: Parallel(Linear("gate", n_in=3, n_out=2), Linear("up", n_in=3, n_out=2), combine="multiply"),
        (3, 3),
        lambda p, x: _linear("gate")(p, x) * _linear("up")(p, x),
        ("gate/W", "gate/b", "up/W", "up/b"),
    ),
    "parallel_sum": Case(
        lambda: Parallel(Linear("a", n_in=3, n_out=3), Tanh(), combine="add"),
        (3, 3),
        lambda p, x: _linear("a")(p, x) + np.tanh(x),
        ("a/W", "a/b"),
    ),
    "parallel_mean": Case(
        lambda: Parallel(Linear("m", n_in=3, n_out=3), Tanh(), combine="mean"),
        (3, 3),
        lambda p, x: (_linear("m")(p, x) + np.tanh(x)) / 2,
        ("m/W", "m/b"),
    ),
    "lambda": Case(lambda: Lambda(_square, name="square"), (3, 2), lambda p, x: x * x),
    "repeat": Case(
        lambda: Repeat(3, Sequential(Linear("fc", n_in=2, n_out=2), Tanh()), name="block"),
        (3, 2),
        _repeated,
        tuple(f"block{k}/fc/{leaf}" for k in range(3) for leaf in ("W", "b")),
    ),
    "embedding": Case(
        lambda: Embedding("tokens", n_embeddings=5, n_features=3),
        (4, 6),
        _embedding("tokens"),
        ("tokens/W",),
        rows=5,
    ),
    "embedding_with_padding": Case(
        lambda: Embedding("padded", n_embeddings=5, n_features=3, padding=0),
        (4, 6),
        _embedding("padded", 0),
        ("padded/W",),
        rows=5,
    ),
    "sinusoidal_positions": Case(
        lambda: SinusoidalPositions("sine", n_features=5),
        (2, 4, 5),
        lambda p, x: x + _sinusoids(x.shape[1], 5),
    ),
    "learned_positions": Case(
        lambda: LearnedPositions("learned", n_positions=6, n_features=3),
        (2, 4, 3),
        lambda p, x: x + p["learned/W"][: x.shape[1]],
        ("learned/W",),
    ),
    "rotary_positions": Case(lambda: RotaryPositions("rotary"), (2, 3, 4), _rotary(False), known=(-1,)),
    "rotary_positions_interleaved": Case(
        lambda: RotaryPositions("interleaved", interleaved=True), (2, 3, 4), _rotary(True), known=(-1,)
    ),
}

#: The layers of the lines above.
OWN = tuple(CASES)

#: Families whose lines stand in a file of their own, ``cases_<family>.py``, as arguments of `Case`.
for _family in ("attention", "combinators", "convolution", "recurrent", "windows"):
    _file = runpy.run_path(str(Path(__file__).with_name(f"cases_{_family}.py")))
    CASES.update({name: Case(**line) for name, line in _file["CASES"].items()})


def _x(name, shape=None, dtype="float64"):
    case = CASES[name]
    rng = np.random.default_rng(sorted(CASES).index(name))
    shape = case.shape if shape is None else shape
    if case.rows is not None:
        return rng.integers(0, case.rows, shape)
    return rng.normal(0.5, 1.0, shape).astype(dtype)


def _cases(backend):
    """Give what is compiled for a backend.

    For C each group of ops is a module that takes seconds: the families' ops have tests of their own there.
    """
    return CASES if backend != "c" else {name: CASES[name] for name in OWN}


def _drawn(state):
    """Give parameters and statistics values that are not the ones that they start from."""
    rng = np.random.default_rng(1)
    return state.replace(
        {a: rng.uniform(0.5, 1.5, v.shape).astype(v.dtype) for a, v in state.items() if v.dtype != "uint32"}
    )


class Built(NamedTuple):
    """The program of all layers, and where each one's results are."""

    program: Any
    where: dict[str, slice]
    #: The shape and dtype of what is given besides the input, for each.
    given: list[tuple[str, str]]
    parameters: dict[str, list[str]]
    dtypes: dict[str, list[str]]


def _build(backend, floatX, loose=False, second=False):
    """Put every layer into one program: its output, gradients of a loss, and derivatives of those."""
    with pytensor.config.change_flags(floatX=floatX):
        inputs, outputs, where, given, parameters, dtypes, used = [], [], {}, [], {}, {}, []
        for name, case in _cases(backend).items():
            layer = case.layer()
            used.append(layer)
            static = [None if loose or axis == 0 else size for axis, size in enumerate(case.shape)]
            for axis in case.known:
                static[axis] = case.shape[axis]
            X = Input(name, tuple(static), dtype="int64" if case.rows else None)
            Y = layer(X)
            leaves = list(ptml.slots(layer, Role.PARAMETER))
            w = Y.type("w")
            inputs += [X, w]
            given += [(name, "x"), (name, "w")]
            loss = (w * Y).sum() + (Y * Y).sum() / np.asarray(2, floatX)
            wrt = leaves if case.rows else [X, *leaves]
            start = len(outputs)
            gradients = pytensor.grad(loss, wrt)
            outputs += [Y, *gradients]
            if second:
                directions = [v.type("v") for v in wrt]
                inputs += directions
                given += [(name, f"v{k}") for k in range(len(wrt))]
                along = sum((g * v).sum() for g, v in zip(gradients, directions, strict=True))
                outputs += pytensor.grad(along, wrt, disconnected_inputs="ignore")
            where[name] = slice(start, len(outputs))
            parameters[name] = [h.slot.address for h in leaves]
            dtypes[name] = [v.type.dtype for v in outputs[start:]]
        state = _drawn(ptml.init(used, seed=0))
        program = ptml.function(inputs, outputs, state=state, backend=backend)
    return Built(program, where, given, parameters, dtypes)


@functools.cache
def built(backend="numba", floatX="float64", loose=False, second=False):
    return _build(backend, floatX, loose, second)


def _arrays(made, shapes=None, floatX="float64", layout=lambda x: x):
    """Give the values of all inputs: of the shapes of the table, or of others by name."""
    before = made.program.state
    values = []
    for name, kind in made.given:
        case = CASES[name]
        x = _x(name, None if shapes is None else shapes[name], floatX)
        if kind == "x":
            values.append(layout(x))
        elif kind == "w":
            y = case.reference(before, x)
            values.append(np.random.default_rng(7).normal(size=y.shape).astype(floatX))
        else:
            wrt = ([] if case.rows else [x]) + [before[a] for a in made.parameters[name]]
            k = int(kind[1:])
            values.append(np.random.default_rng(k).normal(size=wrt[k].shape).astype(floatX))
    return values


class Ran(NamedTuple):
    results: dict[str, list[np.ndarray]]
    values: dict[tuple[str, str], np.ndarray]
    state: Any


def _run(made, **options):
    values = _arrays(made, **options)
    before = made.program.state
    results = made.program(*values)
    made.program.store.load(before)
    return Ran(
        {name: [np.asarray(r) for r in results[place]] for name, place in made.where.items()},
        dict(zip(made.given, values, strict=True)),
        before,
    )


@functools.cache
def ran(backend="numba", floatX="float64", second=False):
    return _run(built(backend, floatX, second=second), floatX=floatX)


def _gradient(case, leaves, x, w, names):
    """Differentiate the loss of the reference by a step along the imaginary axis."""
    whole = {a: v.astype("float64") if v.dtype != "uint32" else v for a, v in leaves.items()}
    values = [None if case.rows else x.astype("float64"), *(whole[a] for a in names)]

    def loss(at, step):
        moved = [v if v is None or k != at else v + step for k, v in enumerate(values)]
        y = case.reference(
            {**whole, **dict(zip(names, moved[1:], strict=True))}, x if case.rows else moved[0]
        )
        return (w * y).sum() + (y * y).sum() / 2

    found = []
    for k, value in enumerate(values):
        if value is None:
            continue
        g = np.empty(value.shape)
        for index in np.ndindex(value.shape):
            step = np.zeros(value.shape, "complex128")
            step[index] = 1e-30j
            g[index] = loss(k, step).imag / 1e-30
        found.append(g)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_that_of_the_reference(name):
    run = ran(second=True)
    wanted = CASES[name].reference(run.state, run.values[name, "x"])
    np.testing.assert_allclose(run.results[name][0], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_gradients_are_those_of_the_reference(name):
    run, names = ran(second=True), built(second=True).parameters[name]
    wanted = _gradient(CASES[name], run.state, run.values[name, "x"], run.values[name, "w"], names)
    for got, right in zip(run.results[name][1 : 1 + len(wanted)], wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_those_of_finite_differences(name):
    run, names, case = ran(second=True), built(second=True).parameters[name], CASES[name]
    x, w = run.values[name, "x"], run.values[name, "w"]
    count = (len(run.results[name]) - 1) // 2
    v = [run.values[name, f"v{k}"] for k in range(count)]

    def gradient(step):
        moved = iter(v)
        there = x if case.rows else x + step * next(moved)
        leaves = {**run.state, **{a: run.state[a] + step * next(moved) for a in names}}
        return _gradient(case, leaves, there, w, names)

    step = 1e-5
    for got, up, down in zip(run.results[name][1 + count :], gradient(step), gradient(-step), strict=True):
        np.testing.assert_allclose(got, (up - down) / (2 * step), rtol=1e-6, atol=1e-6)


def _smallest(name):
    case = CASES[name]
    if case.smallest is not None:
        return case.smallest
    return (1,) * len(case.shape) if case.rows else (*(1 for _ in case.shape[1:]), case.shape[-1])


def _empty(name):
    case = CASES[name]
    return (0, *_smallest(name)[1:]) if case.takes_none else case.shape


@pytest.mark.parametrize("shapes", [None, _smallest, _empty])
@pytest.mark.parametrize(
    "layout", [lambda x: x, np.asfortranarray, lambda x: np.repeat(x, 2, axis=-1)[..., ::2]]
)
def test_any_shape_and_layout_gives_what_the_reference_says(shapes, layout):
    made = built(loose=True)
    of = None if shapes is None else {name: shapes(name) for name in CASES}
    run = _run(made, shapes=of, layout=layout)
    for name, case in CASES.items():
        x = run.values[name, "x"]
        y, *gradients = run.results[name]
        wanted = case.reference(run.state, np.ascontiguousarray(x))
        np.testing.assert_allclose(y, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
        if not case.rows:
            assert gradients[0].shape == x.shape, name
        assert all(np.isfinite(g).all() for g in gradients), name


@pytest.mark.backends("numba", "c", "jax", "mlx", "pytorch")
def test_every_backend_computes_in_float32_what_the_reference_says(backend):
    made, run = built(backend, "float32"), ran(backend, "float32")
    for name, case in _cases(backend).items():
        assert set(made.dtypes[name]) == {"float32"}, name
        assert {str(r.dtype) for r in run.results[name]} == {"float32"}, name
        x, w = run.values[name, "x"], run.values[name, "w"]
        y = case.reference(
            {a: v if v.dtype == "uint32" else v.astype("float64") for a, v in run.state.items()},
            x if case.rows else x.astype("float64"),
        )
        wanted = [y, *_gradient(case, run.state, x, w, made.parameters[name])]
        # A sum is as exact as the largest of what it adds up, of which the result may have little left: the
        # gradient by the bias of keys is zero.
        allowed = max(5e-5, 5e-6 * max(np.abs(right).max(initial=0.0) for right in wanted))
        for got, right in zip(run.results[name], wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=2e-4, atol=allowed, err_msg=name)


def test_prediction_gives_what_it_should():
    used = {name: case.layer() for name, case in CASES.items()}
    inputs = [
        Input(name, (None, *case.shape[1:]), dtype="int64" if case.rows else None)
        for name, case in CASES.items()
    ]
    outputs = [layer(X) for layer, X in zip(used.values(), inputs, strict=True)]
    state = _drawn(ptml.init(list(used.values()), seed=0))
    results = ptml.compile_predict(outputs, inputs=inputs, state=state)(*[_x(name) for name in CASES])
    for (name, case), got in zip(CASES.items(), results, strict=True):
        wanted = (case.predicted or case.reference)(state, _x(name))
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_the_state_has_exactly_the_declared_leaves(name):
    layer = CASES[name].layer()
    assert tuple(handle.slot.address for handle in ptml.slots(layer)) == CASES[name].leaves
    assert tuple(ptml.init(layer, seed=0)) == CASES[name].leaves


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_a_value_that_its_repr_and_its_config_make_again(name):
    layer = CASES[name].layer()
    assert layer == CASES[name].layer()
    assert hash(layer) == hash(CASES[name].layer())
    known = {**vars(activations), **vars(layers), "_square": _square}
    assert eval(repr(layer), known) == layer
    if name != "lambda":
        assert ptml.from_config(ptml.to_config(layer)) == layer
