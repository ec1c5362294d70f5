"""What every rule and transform promises, as one table that each joins by a line.

To join, add a `Case` to `CASES`: a function from a rate to the rule, or to a chain with the transform in it,
and what it must do. Everything else here is then asked of it:

- ``first``: where a parameter starts, the gradients that it is given, and where it is after each, in closed
  form, at `rate`;
- ``reference``: its path over a hundred steps. ``from_optax`` gives optax's, ``by_hand`` that of a generator
  written from the paper: it is given the start, the gradients and the rate, and yields positions;
- ``shape``: that of the parameter on the path; a matrix for what wants one;
- ``quadratic``, ``rosenbrock``: rates to begin with, from which it finds the minima while they fall to zero
  over 4,000 steps, or None where that is not its job.

- ``variant``: whether another line covers the same computation, so that not every backend need compile it;
- ``prompt``: whether each gradient, whatever it is, reaches the parameter at once: a guard's does not.

Whatever has a ``namespace`` is given one of its own, so that all cases fit into one program: a backend
compiles once for all of them.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import jax
import numpy as np
import optax
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise

import ptml.optim
from ptml import function
from ptml.backends.numba.plan.runtime.cache import kernels
from ptml.module import Module
from ptml.optim import (
    accumulate,
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    adamw,
    adaptive_clip,
    apply_if_finite,
    centralize,
    chain,
    clip_by_norm,
    constant_schedule,
    ema,
    lamb,
    large_step,
    linear_schedule,
    lion,
    lookahead,
    muon,
    nadam,
    partition,
    radam,
    rmsprop,
    rprop,
    scalar_state,
    sgd,
    skip_if,
    take_step,
)
from ptml_state import State

type Path = Callable[[np.ndarray, np.ndarray, float], Iterable[np.ndarray]]


@attrs.frozen(kw_only=True)
class Case:
    """A line of the table; see the top of this file."""

    name: str = attrs.field(kw_only=False)
    make: Callable[[Any], Any] = attrs.field(kw_only=False)
    rate: float = 0.1
    first: tuple[Any, list, list]
    reference: Path
    shape: tuple[int, ...] = (3,)
    quadratic: float | None = 0.1
    rosenbrock: float | None = 0.1
    variant: bool = False
    prompt: bool = True


def from_optax(make: Callable[..., Any], *args: Any, **options: Any) -> Path:
    """Give the path of optax's optimizer, made with the rate and these arguments."""

    def path(start: np.ndarray, gradients: np.ndarray, rate: float) -> Iterator[np.ndarray]:
        with jax.enable_x64(True):
            optimizer = make(rate, *args, **options)
            position, state = start, optimizer.init(start)
            for gradient in gradients:
                move, state = optimizer.update(gradient, state, position)
                position = np.asarray(optax.apply_updates(position, move))
                yield position

    return path


def by_hand(path: Callable[..., Iterable[np.ndarray]], **options: Any) -> Path:
    """Give the path that a generator computes, given these options too."""
    return lambda start, gradients, rate: path(start, gradients, rate, **options)


def amsgrad_by_hand(p, gradients, rate):
    m = v = largest = 0.0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        largest = np.maximum(largest, v)
        p = p - rate * m / (1 - 0.9**t) / (np.sqrt(largest / (1 - 0.999**t)) + 1e-8)
        yield p


def adagrad_by_hand(p, gradients, rate, epsilon):
    s = 0.0
    for g in gradients:
        s = s + g**2
        p = p - rate * g / (np.sqrt(s) + epsilon)
        yield p


def rprop_by_hand(p, gradients, rate):
    size, before = np.full_like(p, rate), np.zeros_like(p)
    for g in gradients:
        turned = g * before < 0
        factor = np.where(turned, 0.5, np.where(g * before > 0, 1.2, 1.0))
        size = np.clip(size * factor, 1e-6, 50.0)
        before = np.where(turned, 0.0, g)
        p = p - size * np.sign(before)
        yield p


def gathered_by_hand(p, gradients, rate, n):
    v = 0.0
    for t, _ in enumerate(gradients, 1):
        if t % n == 0:
            v = 0.9 * v + gradients[t - n : t].mean(0)
            p = p - rate * v
        yield p


def quintic(x):
    return 3.4445 * x - 4.775 * x**3 + 2.0315 * x**5


def muon_by_hand(p, gradients, rate, decay):
    v = np.zeros_like(p)
    for g in gradients:
        v = 0.95 * v + g
        u, singular_values, w = np.linalg.svd(g + 0.95 * v, full_matrices=False)
        singular_values /= np.linalg.norm(singular_values)
        for _ in range(5):
            singular_values = quintic(singular_values)
        stretch = math.sqrt(max(1, p.shape[1] / p.shape[0]))
        p = p - rate * (stretch * (u * singular_values) @ w + decay * p)
        yield p


def rms(x):
    return np.sqrt(np.mean(x**2))


def adafactor_by_hand(
    p, gradients, rate=None, factored=True, scaled=True, decay_rate=0.8, threshold=1.0, beta1=0.0
):
    rows = columns = s = m = 0.0
    for t, g in enumerate(gradients, 1):
        keep = 1 - t**-decay_rate
        squares = g**2 + 1e-30
        rows = keep * rows + (1 - keep) * squares.sum(1)
        columns = keep * columns + (1 - keep) * squares.sum(0)
        s = keep * s + (1 - keep) * squares
        u = g / np.sqrt(np.outer(rows, columns) / rows.sum() if factored else s)
        u = u / max(1, rms(u) / threshold)
        m = beta1 * m + (1 - beta1) * (max(1e-3, rms(p)) if scaled else 1) * u
        p = p - (min(0.01, t**-0.5) if rate is None else rate) * m
        yield p


def clipped_by_hand(p, gradients, rate, bound):
    for g in gradients:
        p = p - rate * g / max(1, np.linalg.norm(g) / bound)
        yield p


def centred_by_hand(p, gradients, rate):
    for g in gradients:
        p = p - rate * (g - g.mean(0))
        yield p


def chained_in_optax(transform, start, gradients, rate):
    return from_optax(lambda rate: optax.chain(transform, optax.sgd(rate)))(start, gradients, rate)


def lookahead_of_optax(start, gradients, rate, period):
    with jax.enable_x64(True):
        optimizer = optax.lookahead(optax.adam(rate), period, 0.5)
        position = optax.LookaheadParams.init_synced(jax.numpy.asarray(start))
        state = optimizer.init(position)
        for gradient in gradients:
            move, state = optimizer.update(jax.numpy.asarray(gradient), state, position)
            position = optax.apply_updates(position, move)
            yield np.asarray(position.fast)


CASES = [
    Case(
        "sgd",
        sgd,
        first=([1.0, 2.0], [[2.0, -4.0]], [[0.8, 2.4]]),
        reference=from_optax(optax.sgd),
        rosenbrock=2e-3,
    ),
    Case(
        "momentum",
        lambda rate: sgd(rate, momentum=0.9),
        first=(0.0, [1, 1], [-0.1, -0.29]),
        reference=from_optax(optax.sgd, 0.9),
        quadratic=0.05,
        rosenbrock=1e-3,
        variant=True,
    ),
    Case(
        "nesterov",
        lambda rate: sgd(rate, momentum=0.9, nesterov=True),
        first=(0.0, [1, 1], [-0.19, -0.461]),
        reference=from_optax(optax.sgd, 0.9, nesterov=True),
        quadratic=0.05,
        rosenbrock=1e-3,
    ),
    Case(
        "adam",
        adam,
        first=(0.0, [1e-8, 1e-8], [-0.05, -0.1]),
        reference=from_optax(optax.adam),
    ),
    Case(
        "amsgrad",
        lambda rate: adam(rate, amsgrad=True),
        first=(0.0, [1, 1], [-0.1 / (1 + 1e-8), -0.2 / (1 + 1e-8)]),
        reference=by_hand(amsgrad_by_hand),
    ),
    Case(
        "adamw",
        lambda rate: adamw(rate, 0.02),
        first=(1.0, [0, 0], [0.998, 0.998**2]),
        reference=from_optax(optax.adamw, weight_decay=0.02),
        quadratic=None,
        rosenbrock=None,
    ),
    Case(
        "nadam",
        nadam,
        first=(0.0, [1, 1, 1], [-0.14736841957894742, -0.2630996283653129, -0.37092177587787073]),
        reference=from_optax(optax.nadam),
    ),
    Case(
        "adamax",
        adamax,
        first=(0.0, [1, 1], [-0.1 / (1 + 1e-8), -0.2 / (1 + 1e-8)]),
        reference=from_optax(optax.adamax),
    ),
    Case(
        "rmsprop",
        rmsprop,
        first=(0.0, [2, 0], [-0.2 / (math.sqrt(0.4) + 1e-8)] * 2),
        reference=from_optax(optax.rmsprop, eps_in_sqrt=False),
        rosenbrock=0.01,
    ),
    Case(
        "rmsprop_centered",
        lambda rate: rmsprop(rate, centered=True),
        first=(0.0, [2, 0], [-0.2 / (0.6 + 1e-8)] * 2),
        reference=from_optax(optax.rmsprop, eps_in_sqrt=False, centered=True),
        rosenbrock=0.003,
        quadratic=0.01,
    ),
    Case(
        "rmsprop_momentum",
        lambda rate: rmsprop(rate, 0.95, 0.8),
        first=(0.0, [2, 0], [-0.2 / (math.sqrt(0.2) + 1e-8), -0.36 / (math.sqrt(0.2) + 1e-8)]),
        reference=from_optax(optax.rmsprop, 0.95, eps_in_sqrt=False, momentum=0.8),
        rosenbrock=0.003,
        quadratic=0.01,
        variant=True,
    ),
    Case(
        "rprop",
        rprop,
        rate=0.01,
        first=(0.0, [1, 1, -1, -1], [-0.01, -0.022, -0.022, -0.016]),
        reference=by_hand(rprop_by_hand),
        quadratic=0.01,
        rosenbrock=0.01,
    ),
    Case(
        "adagrad",
        adagrad,
        first=(0.0, [3, 4], [-0.3 / (3 + 1e-8), -0.3 / (3 + 1e-8) - 0.4 / (5 + 1e-8)]),
        reference=by_hand(adagrad_by_hand, epsilon=1e-8),
        quadratic=0.5,
        rosenbrock=1.0,
    ),
    Case(
        "adagrad_started",
        lambda rate: adagrad(rate, 0.0, initial_accumulator=9.0),
        first=(0.0, [4], [-0.08]),
        reference=from_optax(optax.adagrad, 9.0, 0.0),
        quadratic=0.5,
        rosenbrock=1.0,
        variant=True,
    ),
    Case(
        "adadelta",
        adadelta,
        rate=1.0,
        first=(0.0, [1], [-math.sqrt(1e-6 / (0.1 + 1e-6))]),
        reference=from_optax(optax.adadelta),
        quadratic=10.0,
        rosenbrock=3.0,
    ),
    Case(
        "lion",
        lambda rate: lion(rate, 0.1),
        first=(0.0, [5, -0.3], [-0.1, -0.199]),
        reference=from_optax(optax.lion, weight_decay=0.1),
        quadratic=None,
        rosenbrock=None,
    ),
    Case(
        "lion_plain",
        lion,
        first=(0.0, [5, -6, 0.5], [-0.1, 0.0, -0.1]),
        reference=from_optax(optax.lion, weight_decay=0.0),
        rosenbrock=0.01,
        variant=True,
    ),
    Case(
        "radam",
        radam,
        first=(0.0, [2, 2, 2], [-0.2, -0.4, -0.6]),
        reference=from_optax(optax.radam),
        rosenbrock=6e-3,
    ),
    Case(
        "radam_of_the_paper",
        lambda rate: radam(rate, 0.8, 0.99, threshold=4.0),
        first=(0.0, [2, 2, 2], [-0.2, -0.4, -0.6]),
        reference=from_optax(optax.radam, 0.8, 0.99, threshold=4.0),
        rosenbrock=6e-3,
        variant=True,
    ),
    Case(
        "lamb",
        lambda rate: lamb(rate, 0.01),
        first=([1.0, -1.0], [[3.0, -3.0]], [[0.9, -0.9]]),
        reference=from_optax(optax.lamb, weight_decay=0.01),
        quadratic=None,
        rosenbrock=None,
    ),
    Case(
        "muon",
        lambda rate: muon(rate, weight_decay=0.02),
        first=([[1.0]], [[[5.0]]], [[[0.998 - 0.1 * quintic(quintic(quintic(quintic(quintic(1.0)))))]]]),
        reference=by_hand(muon_by_hand, decay=0.02),
        shape=(2, 4),
        quadratic=None,
        rosenbrock=None,
    ),
    Case(
        "muon_tall",
        muon,
        first=([[0.0]], [[[0.0]]], [[[0.0]]]),
        reference=by_hand(muon_by_hand, decay=0.0),
        shape=(4, 2),
        rosenbrock=0.05,
        variant=True,
    ),
    Case(
        "adafactor",
        lambda rate: adafactor(rate, scale_by_parameter=False, min_size_to_factor=2),
        first=([1.0, 2.0], [[5.0, -3.0]], [[0.9, 2.1]]),
        reference=by_hand(adafactor_by_hand, scaled=False),
        shape=(4, 2),
        rosenbrock=0.02,
    ),
    Case(
        "adafactor_whole",
        lambda rate: adafactor(rate, 0.7, 2.0, beta1=0.9),
        first=([2.0, -2.0], [[5.0, -3.0]], [[1.98, -1.98]]),
        reference=by_hand(adafactor_by_hand, factored=False, decay_rate=0.7, threshold=2.0, beta1=0.9),
        shape=(4, 2),
        rosenbrock=0.05,
    ),
    Case(
        "adafactor_of_the_paper",
        lambda rate: adafactor(min_size_to_factor=1),
        first=([2.0, -2.0], [[5.0, -3.0]], [[1.98, -1.98]]),
        reference=lambda start, gradients, rate: adafactor_by_hand(start, gradients),
        shape=(3, 2),
        quadratic=None,
        rosenbrock=None,
        variant=True,
    ),
    Case(
        "clip_by_norm",
        lambda rate: chain(clip_by_norm(2.5), sgd(rate)),
        first=([1.0, 1.0], [[3.0, 4.0], [1.0, 0.0]], [[0.85, 0.8], [0.75, 0.8]]),
        reference=by_hand(clipped_by_hand, bound=2.5),
        rosenbrock=None,
    ),
    Case(
        "adaptive_clip",
        lambda rate: chain(adaptive_clip(0.1), sgd(rate)),
        first=([[3.0], [4.0]], [[[6.0], [8.0]]], [[[2.97], [3.96]]]),
        reference=lambda *given: chained_in_optax(optax.adaptive_grad_clip(0.1), *given),
        shape=(4, 2),
        quadratic=None,
        rosenbrock=None,
    ),
    Case(
        "centralize",
        lambda rate: chain(centralize(), sgd(rate)),
        first=([[1.0], [2.0]], [[[3.0], [5.0]]], [[[1.1], [1.9]]]),
        reference=by_hand(centred_by_hand),
        shape=(4, 2),
        quadratic=None,
        rosenbrock=None,
    ),
    Case(
        "lookahead",
        lambda rate: lookahead(adam(rate), 3),
        first=(0.0, [1, 1, 1], [-0.1 / (1 + 1e-8), -0.2 / (1 + 1e-8), -0.15 / (1 + 1e-8)]),
        reference=lambda *given: lookahead_of_optax(*given, period=3),
    ),
    Case(
        "partition",
        lambda rate: partition({"p*": nadam(rate)}, otherwise=sgd(rate)),
        first=(0.0, [1, 1], [-0.14736841957894742, -0.2630996283653129]),
        reference=from_optax(optax.nadam),
    ),
    Case(
        "ema",
        lambda rate: chain(adam(rate), ema(0.9)),
        first=(0.0, [1e-8, 1e-8], [-0.05, -0.1]),
        reference=from_optax(optax.adam),
    ),
    Case(
        "accumulate",
        lambda rate: chain(accumulate(2, weight=1), sgd(rate, momentum=0.9)),
        first=(0.0, [1, 3, 1, 1], [0.0, -0.2, -0.2, -0.48]),
        reference=by_hand(gathered_by_hand, n=2),
        quadratic=0.05,
        rosenbrock=None,
        variant=True,
        prompt=False,
    ),
    Case(
        "skip_if",
        lambda rate: skip_if(sgd(rate), large_step(1e6)),
        first=(0.0, [1, 1e9, 1], [-0.1, -0.1, -0.2]),
        reference=from_optax(optax.sgd),
        quadratic=None,
        rosenbrock=None,
        variant=True,
        prompt=False,
    ),
    Case(
        "apply_if_finite",
        lambda rate: apply_if_finite(adam(rate)),
        first=(0.0, [1, math.nan, 1], [-0.1 / (1 + 1e-8), -0.1 / (1 + 1e-8), -0.2 / (1 + 1e-8)]),
        reference=from_optax(optax.adam),
        quadratic=None,
        rosenbrock=None,
        variant=True,
        prompt=False,
    ),
]

DISTINCT = [case for case in CASES if not case.variant]
PROMPT = [case for case in CASES if case.prompt]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def own_namespaces(value: Any, prefix: str) -> Any:
    """Give a transform whose state, and that of all in it, lies under a prefix."""
    if isinstance(value, tuple):
        return tuple(own_namespaces(item, f"{prefix}/{k}") for k, item in enumerate(value))
    if not isinstance(value, Module):
        return value
    fields = {f.alias: getattr(value, f.name) for f in attrs.fields(type(value)) if f.init}
    changed = {alias: own_namespaces(old, f"{prefix}/{alias}") for alias, old in fields.items()}
    if "namespace" in fields:
        changed["namespace"] = f"{prefix}/{fields['namespace']}"
    return attrs.evolve(value, **changed)


class Together:
    """All cases at work in one program, each on a parameter of its own.

    Parameters
    ----------
    cases : list of Case
    dtype : str
    make : function of a case, optional
        The rule of a case; at its rate unless given.
    loss : function of a parameter, optional
        What each minimizes; gradients are fed in unless given.
    **options
        Of `ptml.function`.
    """

    def __init__(self, new_parameter, cases, *, dtype="float64", make=None, loss=None, start=None, **options):
        self.cases, self.dtype = cases, dtype
        self.parameters, self.gradients, self.steps, pairs = {}, [], {}, []
        for case in cases:
            value = start_of(case) if start is None else np.resize(start, case.shape)
            p = self.parameters[case.name] = new_parameter(value, f"p_{case.name}", dtype)
            self.gradients.append(pt.tensor(f"g_{case.name}", dtype=dtype, shape=case.shape))
            rule = own_namespaces(make(case) if make else case.make(case.rate), case.name)
            steps = take_step(rule, [self.gradients[-1]] if loss is None else loss(p), [p])
            self.steps[case.name] = steps
            pairs.extend(steps.items())
        options = {"seed": 0} | options if "state" not in options else options
        self.program = function(self.gradients if loss is None else [], [], updates=pairs, **options)

    def __call__(self, gradients: list[np.ndarray]) -> None:
        self.program(*(np.asarray(gradient, self.dtype) for gradient in gradients))

    def __getitem__(self, case: Case) -> np.ndarray:
        return np.asarray(self.program.state[f"p_{case.name}"])


def start_of(case: Case) -> np.ndarray:
    return np.random.default_rng(1).normal(size=case.shape)


def gradients_for(cases: list[Case], n_steps: int) -> list[list[np.ndarray]]:
    """Give gradients for each step and case, some of them tiny and some large."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.integers(-3, 3, size=len(cases))
    return [
        [s * rng.normal(size=c.shape) for s, c in zip(scales, cases, strict=True)] for _ in range(n_steps)
    ]


@each_case
def test_first_steps_are_those_of_the_closed_form(run, case):
    start, gradients, expected = case.first
    visited = run(case.make(case.rate), p=start).follow(gradients)
    np.testing.assert_allclose(visited, expected, rtol=1e-12, atol=1e-15)


@each_case
def test_a_hundred_steps_are_those_of_the_reference(run, case):
    scales = np.geomspace(1e-3, 1e3, case.shape[-1])
    gradients = np.random.default_rng(0).normal(size=(100, *case.shape)) * scales
    start = start_of(case)
    visited = run(case.make(case.rate), p=start).follow(gradients)
    expected = np.array(list(case.reference(start, gradients, case.rate)))
    np.testing.assert_allclose(visited, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "rate",
    [1, 0.1, np.float64(0.1), np.float32(0.1), pt.constant(0.1, dtype="float64"), constant_schedule(0.1)],
    ids=["int", "float", "float64", "float32", "symbolic", "schedule"],
)
def test_float32_stays_float32_whatever_kind_of_number_the_rate_is(new_parameter, rate):
    work = Together(new_parameter, CASES, dtype="float32", make=lambda case: case.make(rate))
    for steps in work.steps.values():
        written = {handle: value.dtype for handle, value in [*steps.amounts.items(), *steps.items()]}
        assert all(dtype == "float32" or handle.dtype == "int64" for handle, dtype in written.items())
    work(gradients_for(CASES, 1)[0])
    dtypes = {address: leaf.dtype for address, leaf in work.program.state.items()}
    clocks = {a for a in dtypes if a.endswith(("step_count", "micro_batches", "_skips"))}
    assert {str(dtype) for address, dtype in dtypes.items() if address not in clocks} == {"float32"}
    assert {str(dtypes[address]) for address in clocks} == {"int64"}


def test_nothing_on_the_way_to_a_float32_step_is_wider(new_parameter):
    work = Together(new_parameter, CASES, dtype="float32")
    wide = {
        name: [v for v in ancestors(list(steps.values())) if getattr(v.type, "dtype", "") == "float64"]
        for name, steps in work.steps.items()
    }
    assert {name: found for name, found in wide.items() if found} == {}


def quadratic(p):
    scales = np.resize([1.0, 3.0, 0.3], p.type.shape).astype(p.dtype)
    return 0.5 * (scales * pt.sqr(p - 0.5)).sum()


def rosenbrock(p):
    x, y = p.flatten()[::2], p.flatten()[1::2]
    return (pt.sqr(1 - x) + 100 * pt.sqr(y - pt.sqr(x))).sum()


@pytest.mark.parametrize(
    ("loss", "start", "minimum"), [(quadratic, -1.0, 0.5), (rosenbrock, [-1.0, 1.0], 1.0)]
)
def test_a_convex_valley_and_rosenbrocks_are_descended(new_parameter, loss, start, minimum):
    cases = [attrs.evolve(c, shape=(2, 2) if len(c.shape) == 2 else (2,)) for c in CASES]
    cases = [case for case in cases if getattr(case, loss.__name__) is not None]

    def falling(case):
        return case.make(linear_schedule(getattr(case, loss.__name__), 4_000))

    work = Together(new_parameter, cases, loss=loss, make=falling, start=start, backend="numba")
    for _ in range(4_000):
        work.program()
    gaps = {case.name: float(np.abs(work[case] - minimum).max()) for case in cases}
    assert {name: gap for name, gap in gaps.items() if not gap < 0.2} == {}


def test_a_rate_that_changes_compiles_nothing(new_parameter, monkeypatch):
    rates = {case.name: scalar_state(f"rate/{case.name}", case.rate) for case in CASES}
    work = Together(new_parameter, CASES, make=lambda case: case.make(rates[case.name]), backend="numba")
    first, second = gradients_for(CASES, 2)
    work(first)

    def compiled(source):
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(kernels, "address", compiled)
    moved = {case.name: work[case] for case in CASES}
    work.program.store.set({"rate/**": 0.0})
    work(second)
    steered = [case for case in CASES if case.name != "adafactor_of_the_paper"]
    for case in steered:
        np.testing.assert_array_equal(work[case], moved[case.name], err_msg=case.name)


def test_a_rule_that_looks_at_each_element_alone_is_one_kernel(new_parameter):
    rules = [case for case in CASES if type(case.make(0.1)).__module__.startswith("ptml.optim.rules.")]
    looks_at_all = {"lamb", "muon", "muon_tall", "adafactor", "adafactor_whole", "adafactor_of_the_paper"}
    cases = [case for case in rules if case.name not in looks_at_all]
    work = Together(new_parameter, cases, backend="numba")
    nodes = work.program.function.maker.fgraph.toposort()
    kernels_of_parameters = [
        node for node in nodes if isinstance(node.op, Elemwise) and node.outputs[0].type.shape == (3,)
    ]
    assert len(kernels_of_parameters) == len(cases)


@each_case
def test_a_rule_is_a_value_which_its_repr_and_a_pickle_rebuild(case):
    rule = case.make(case.rate)
    assert rule == case.make(case.rate)
    assert hash(rule) == hash(case.make(case.rate))
    names = {name: getattr(ptml.optim, name) for name in ptml.optim.__all__}
    assert eval(repr(rule), names) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule
    with pytest.raises(AttributeError, match="never changes"):
        rule.namespace = "other"


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_every_backend_makes_the_same_steps_and_resumes_exactly(new_parameter, backend):
    # MLX has no float64; C takes seconds for each kernel, and has those of float32 for the next test.
    dtype, tolerance = ("float64", 1e-9) if backend in ("numba", "jax") else ("float32", 2e-4)
    gradients = gradients_for(DISTINCT, 6)
    expected = Together(new_parameter, DISTINCT)
    work = Together(new_parameter, DISTINCT, dtype=dtype, backend=backend)
    for k, given in enumerate(gradients):
        if k == 3:
            saved = State.of(work.program.state.leaves)
        work(given)
        expected(given)
    for case in DISTINCT:
        np.testing.assert_allclose(work[case], expected[case], rtol=0, atol=tolerance, err_msg=case.name)
    rebuilt = Together(new_parameter, DISTINCT, dtype=dtype, backend=backend, state=saved)
    for given in gradients[3:]:
        rebuilt(given)
    assert rebuilt.program.state == work.program.state


#: Leaves that one gradient of 1e-9 has reached, and what is in them then.
REACHED = {
    "nesterov": ("sgd/velocity", 1e-9),
    "adam": ("adam/first_moment", 1e-10),
    "amsgrad": ("adam/max_second_moment", 1e-21),
    "adamw": ("adamw/second_moment", 1e-21),
    "nadam": ("nadam/first_moment", 1e-10),
    "adamax": ("adamax/infinity_norm", 1.1e-8),
    "rmsprop": ("rmsprop/root_mean_square", math.sqrt(0.1) * 1e-9),
    "rmsprop_centered": ("rmsprop/deviation", 0.3e-9),
    "rprop": ("rprop/previous_gradient", 1e-9),
    "adagrad": ("adagrad/root_sum_of_squares", 1e-9),
    "adadelta": ("adadelta/root_mean_square", math.sqrt(0.1) * 1e-9),
    "lion": ("lion/first_moment", 1e-11),
    "radam": ("radam/first_moment", 1e-10),
    "lamb": ("lamb/first_moment", 1e-10),
    "muon": ("muon/velocity", 1e-9),
    "adafactor": ("adafactor/row_rms", 1e-9),
    "adafactor_whole": ("adafactor/root_mean_square", 1e-9),
}


def check_what_arrives(work: Together) -> None:
    """Feed in gradients that are tiny beside the parameters, larger than float32's root, and undefined."""

    def step(size: float) -> None:
        work([size * np.linspace(0.5, 1, math.prod(c.shape)).reshape(c.shape) for c in work.cases])

    work([np.full(case.shape, 1e-9) for case in work.cases])
    for name, (leaf, expected) in REACHED.items():
        found = work.program.state[f"{name}/{leaf}/p_{name}"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
    for size in (1e20, 1.0, 1.0):
        step(size)
    assert [a for a, leaf in work.program.state.items() if not np.isfinite(leaf).all()] == []
    step(math.nan)
    assert [case.name for case in work.cases if np.isfinite(work[case]).any()] == []


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_gradients_tiny_large_and_undefined_arrive_as_they_are(new_parameter, backend):
    check_what_arrives(Together(new_parameter, DISTINCT, dtype="float32", start=1.0, backend=backend))


def test_gradients_tiny_large_and_undefined_arrive_as_they_are_without_rewrites(new_parameter):
    check_what_arrives(Together(new_parameter, PROMPT, dtype="float32", start=1.0))


def test_a_zero_gradient_in_half_precision_leaves_everything_finite(new_parameter):
    cases = [case for case in CASES if case.name not in ("adamw", "lion", "lamb", "muon")]  # these decay
    work = Together(new_parameter, cases, dtype="float16", start=[1.0, 2.0])
    before = {case.name: work[case] for case in cases}
    for _ in range(3):
        work([np.zeros(case.shape) for case in cases])
    for case in cases:
        np.testing.assert_array_equal(work[case], before[case.name], err_msg=case.name)
        assert work[case].dtype == np.float16
    assert all(np.isfinite(leaf).all() for leaf in work.program.state.values())
