"""The sharp edges that this library answers to, one by one: an error that says what to write, or none left.

Each entry of `EDGES` is a mistake from the page of sharp edges, or one of its kind, with the error that it
raises. Each entry of `BLUNTED` is a mistake that cannot be made any more, with a check of what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.utils import MissingInputError

import ptml
from ptml.layers import BatchNorm, Conv2D, Dropout, Flatten, Input, Linear, MaxPool1D, MaxPool2D, Sequential
from ptml.loss import CrossEntropy, SquaredError, supervised_loss
from ptml.optim import (
    adam,
    add_weight_decay,
    chain,
    clip_by_global_norm,
    compile_train,
    constant_schedule,
    cosine_schedule,
    linear_schedule,
    scale,
    sgd,
    trace,
)
from ptml_state import State, Store

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}


@pytest.fixture(autouse=True)
def quick_to_compile() -> Iterator[None]:
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        yield


def X(width: int = 2) -> Any:
    return Input("X", (None, width))


def fc(name: str | None = "fc", **options: Any) -> Linear:
    return Linear(name, **{"n_in": 2, "n_out": 2, **options})


def loss_of(layer: Any, x: Any = None) -> Any:
    return (layer(X() if x is None else x) ** 2).mean()


def train(rule: Any, layer: Any = None, **options: Any) -> Any:
    options = {"compile_kwargs": PYTHON, **({} if "state" in options else {"seed": 0}), **options}
    return compile_train(loss_of(layer or fc()), rule, **options)


def predict(graph: Any, **options: Any) -> Any:
    return ptml.compile_predict(graph, **{"compile_kwargs": PYTHON, **options})


def plain(graph: Any, **options: Any) -> Any:
    return pytensor.function([*_inputs(graph)], graph, **options)


def _inputs(graph: Any) -> list[Any]:
    from pytensor.graph.traversal import graph_inputs

    return [v for v in graph_inputs([graph]) if v.name == "X"]


def scheduled_rate() -> Any:
    from ptml.optim import counter

    return linear_schedule(0.0, 100, 0.1)(counter("warmup/step_count"))


class Edge(NamedTuple):
    """A mistake, and what it is told."""

    section: str
    mistake: Callable[[], Any]
    error: type[Exception]
    says: str


FUNCTION = "Compile with this library's function"
POSITION = "Position in a chain"
CLIPPING = "Clipping cannot rescue a step"
NAMES = "Optimizer state is matched by name"
SCHEDULES = "A schedule's third argument is an endpoint"
KEYWORDS = "Hyperparameters are keyword-only"
CHANNELS = "Normalization is channels-last too"
TRANSPOSED = "Linear weights are the transpose of torch's"
POOLING = "Pooling strides by its kernel; convolution strides by one"
BACKENDS = "Backends do not always compute the same answer"

EDGES = {
    # Compile with this library's function
    "plain function with parameters": Edge(
        FUNCTION, lambda: plain(fc()(X())), MissingInputError, r"fc/[Wb] \[slot: needs ptml\.function\]"
    ),
    "plain function with dropout": Edge(
        FUNCTION,
        lambda: plain(Dropout("drop", p=0.1)(X())),
        MissingInputError,
        r"drop/key.*\[slot: needs ptml\.function\]",
    ),
    "plain function with batch norm": Edge(
        FUNCTION,
        lambda: plain(BatchNorm("bn", n_in=2, affine=False)(X())),
        MissingInputError,
        r"bn/running_.*\[slot: needs ptml\.function\]",
    ),
    "plain function with a schedule": Edge(
        FUNCTION,
        lambda: pytensor.function([], scheduled_rate()),
        MissingInputError,
        r"warmup/step_count \[slot: needs ptml\.function\]",
    ),
    "plain function with a rule's updates": Edge(
        FUNCTION,
        lambda: plain(X().sum(), updates=dict(adam(1e-3)(loss_of(layer := fc()), [layer.W]))),
        TypeError,
        r"must be a SharedVariable.*fc/W",
    ),
    "eval of a graph with slots": Edge(
        FUNCTION, lambda: fc().W.sum().eval(), MissingInputError, r"fc/W \[slot: needs ptml\.function\]"
    ),
    "bare scan with dropout": Edge(
        FUNCTION,
        lambda: ptml.function(
            None, pytensor.scan(Dropout("drop", p=0.1), sequences=X(), return_updates=False), seed=0
        ),
        ValueError,
        r"Dropout\('drop', p=0\.1\) would draw the same numbers in every iteration.*Write ptml\.scan",
    ),
    "bare scan with batch norm": Edge(
        FUNCTION,
        lambda: ptml.function(
            None,
            pytensor.scan(BatchNorm("bn", n_in=2), sequences=Input("X", (None, 3, 2)), return_updates=False),
            seed=0,
        ),
        ValueError,
        r"BatchNorm\('bn', n_in=2\) would move no statistic.*Write ptml\.scan",
    ),
    "scan that returns updates": Edge(
        FUNCTION,
        lambda: ptml.scan(lambda x: (x, {pytensor.shared(0.0): x.sum()}), sequences=X()),
        TypeError,
        "returns its outputs, and no dict of updates",
    ),
    "prediction with random weights": Edge(
        FUNCTION, lambda: predict(fc()(X())), ValueError, r"random weights are nobody's wish.*state=program"
    ),
    "loss and rule swapped": Edge(
        FUNCTION, lambda: compile_train(adam(1e-3), loss_of(fc())), TypeError, "Are the two swapped"
    ),
    "updates in the rule's place": Edge(
        FUNCTION,
        lambda: compile_train(loss_of(layer := fc()), adam(1e-3)(loss_of(layer), [layer.W])),
        TypeError,
        r"the rule is a transform such as adam\(1e-3\)",
    ),
    # Position in a chain decides what a transform means
    "rule behind a rule": Edge(
        POSITION, lambda: chain(adam(1e-3), sgd(0.1)), ValueError, r"one rule.*Keep one of them"
    ),
    "rule called on steps": Edge(
        POSITION,
        lambda: sgd(0.1)(adam(1e-3)(loss_of(layer := fc()), [layer.W]), [layer.W]),
        ValueError,
        "stands behind another rule.*Keep one of them",
    ),
    "chain that ends in gradients": Edge(
        POSITION,
        lambda: train(chain(clip_by_global_norm(1.0), add_weight_decay(0.1))),
        ValueError,
        r"ends in gradients.*would climb.*chain\(\.\.\., sgd\(0\.1\)\)",
    ),
    "gradients as a function's updates": Edge(
        POSITION,
        lambda: ptml.function(
            None, X(), updates=clip_by_global_norm(1.0)(loss_of(layer := fc()), [layer.W]), seed=0
        ),
        TypeError,
        "radients",
    ),
    "one transform twice in a chain": Edge(
        POSITION,
        lambda: chain(decay := add_weight_decay(0.1), sgd(0.1), decay),
        ValueError,
        "twice, as one object.*Make a second one",
    ),
    "empty chain": Edge(POSITION, lambda: chain(), ValueError, r"Give it transforms, such as chain\("),
    "transform that is not called": Edge(
        POSITION,
        lambda: chain(clip_by_global_norm, adam(1e-3)),
        TypeError,
        r"position 0\. Write .*\(\.\.\.\)",
    ),
    "number in a chain": Edge(
        POSITION,
        lambda: chain(0.1, adam(1e-3)),
        TypeError,
        "A chain composes transforms; got 0.1 at position 0",
    ),
    # Clipping cannot rescue a step that has already gone non-finite
    "clip to a bound that is none": Edge(
        CLIPPING, lambda: clip_by_global_norm(0.0), ValueError, "max_norm.*a positive number"
    ),
    # Optimizer state is matched by name
    "two traces in one chain": Edge(
        NAMES,
        lambda: train(chain(trace(0.9), trace(0.5), sgd(0.1))),
        ValueError,
        r"'trace/velocity/fc/W': one of Trace\(\), one of Trace\(0\.5\)\. .*namespace='fast'",
    ),
    "two adams on one store": Edge(
        NAMES,
        lambda: [
            train(adam(rate), layer, state=store)
            for layer, store in [(fc(), Store(seed=0))]
            for rate in (1, 2)
        ],
        ValueError,
        r"'adam/.*belongs to another object",
    ),
    "two layers of one given name": Edge(
        NAMES,
        lambda: train(adam(1e-3), Sequential(fc("same"), fc("same"))),
        ValueError,
        r"'same/W': one of Linear\('same'.*Give one of the two another name",
    ),
    "an address that leads through another": Edge(
        NAMES,
        lambda: train(sgd(ptml.optim.scalar_state("fc/W/rate", 0.1))),
        ValueError,
        r"'fc/W' is the address of a piece of state .* cannot lead to 'fc/W/rate'",
    ),
    "state of another network": Edge(
        NAMES,
        lambda: predict(fc("new")(X()), state=ptml.init(fc("old"), seed=0)),
        ValueError,
        r"lacks the parameter leaves new/W, new/b .* has old/W, old/b .*state\.rename",
    ),
    "state that lacks leaves": Edge(
        NAMES,
        lambda: predict(fc()(X()), state=ptml.init(fc(), seed=0).drop("fc/b")),
        ValueError,
        "The state lacks fc/b, without which a prediction means nothing",
    ),
    "rebuilt network on a live store": Edge(
        NAMES,
        lambda: [train(sgd(0.1), layer, state=store) for store in [Store(seed=0)] for layer in (fc(), fc())],
        ValueError,
        r"belongs to another object.*state=store\.state",
    ),
    "load of a state that lacks leaves": Edge(
        NAMES,
        lambda: (step := train(sgd(0.1))).store.load(step.state.drop("fc/b")),
        ValueError,
        r"this one lacks fc/b\. .*store\.set",
    ),
    # A schedule's third argument is an endpoint, not a factor
    "optax's alpha": Edge(
        SCHEDULES,
        lambda: cosine_schedule(3e-4, 10_000, 0.1),
        ValueError,
        r"ends above its start.*final_learning_rate=3e-05\) for what alpha=0\.1",
    ),
    "optax's order of a linear schedule": Edge(
        SCHEDULES, lambda: linear_schedule(1e-3, 0.0, 1000), (TypeError, ValueError), "total_steps"
    ),
    "horizon of no steps": Edge(
        SCHEDULES,
        lambda: cosine_schedule(0.1, 0),
        ValueError,
        "total_steps.*at least 1|total_steps.*1 or more",
    ),
    "negative rate": Edge(SCHEDULES, lambda: constant_schedule(-0.1), ValueError, "learning_rate.*0 or more"),
    "schedule read at a fraction": Edge(
        SCHEDULES, lambda: cosine_schedule(0.1, 10)(0.5), TypeError, "read at a whole number of steps"
    ),
    "symbolic horizon of no steps": Edge(SCHEDULES, lambda: _symbolic_horizon(0), ValueError, "total_steps"),
    # Hyperparameters are keyword-only
    "Dropout(0.1)": Edge(
        KEYWORDS,
        lambda: Dropout(0.1),
        TypeError,
        r"Dropout's `name` must be a string; got 0\.1\. Write Dropout\(p=0\.1\)",
    ),
    'Linear("fc", 64, 10)': Edge(
        KEYWORDS,
        lambda: Linear("fc", 64, 10),
        TypeError,
        r"name by position and every hyperparameter by keyword.*Write Linear\('fc', n_in=64, n_out=10\)",
    ),
    "Linear(64, 10)": Edge(KEYWORDS, lambda: Linear(64, 10), TypeError, r"Write Linear\(n_in=64, n_out=10\)"),
    "BatchNorm(4)": Edge(KEYWORDS, lambda: BatchNorm(4), TypeError, r"Write BatchNorm\(n_in=4\)"),
    "Flatten(1)": Edge(KEYWORDS, lambda: Flatten(1), TypeError, r"`name` must be a string; got 1"),
    "torch's keyword": Edge(
        KEYWORDS, lambda: Linear("fc", in_features=2, n_out=2), TypeError, "no argument 'in_features'"
    ),
    "Sequential of a list": Edge(
        KEYWORDS, lambda: Sequential([fc()]), TypeError, r"Write Sequential\(\*layers\)"
    ),
    "Sequential with its name first": Edge(
        KEYWORDS, lambda: Sequential("net", fc()), TypeError, "name='net'"
    ),
    "Sequential of a class": Edge(
        KEYWORDS, lambda: Sequential(fc(), ptml.activations.ReLU), TypeError, r"Write ReLU\(\)"
    ),
    "Input without a name": Edge(KEYWORDS, lambda: Input((None, 2)), TypeError, r"shape"),
    "loss and prediction swapped": Edge(
        KEYWORDS, lambda: supervised_loss(SquaredError(), X()), TypeError, "The prediction comes first"
    ),
    "loss that is not called": Edge(
        KEYWORDS, lambda: supervised_loss(X(), CrossEntropy), TypeError, r"Write CrossEntropy\(\)"
    ),
    "unnamed layers in another order": Edge(
        KEYWORDS,
        lambda: _swapped(),
        ValueError,
        r"Give a name to each of the layers called 'Linear'.*state\.rename",
    ),
    "second unnamed layer on a store": Edge(
        KEYWORDS,
        lambda: _second_unnamed(),
        ValueError,
        r"at 'Linear/W', and here it would be at 'Linear_1/W'.*Give a name to each of the layers called",
    ),
    "hyperparameter that is changed": Edge(
        KEYWORDS,
        lambda: setattr(Dropout("drop", p=0.1), "p", 0.2),
        AttributeError,
        r"A Dropout never changes.*copy\.replace\(old, p=",
    ),
    # Normalization is channels-last too
    "channels first": Edge(
        CHANNELS,
        lambda: BatchNorm("bn", n_in=3)(Input("X", (32, 3, 24, 28))),
        ValueError,
        r"bn.*\(batch, \.\.\., 3 channels\).*\(32, 3, 24, 28\)",
    ),
    "channels first, known only in the run": Edge(
        CHANNELS,
        lambda: ptml.function(None, BatchNorm("bn", n_in=3)(pt.tensor4("X")), seed=0, **PYTHON)(
            np.ones((4, 3, 5, 6))
        ),
        ValueError,
        r"bn.*3 channels.*\(4, 3, 5, 6\)",
    ),
    "batch norm without a batch axis": Edge(
        CHANNELS, lambda: BatchNorm("bn", n_in=3)(pt.vector("X", shape=(3,))), ValueError, "bn"
    ),
    "batch of one row": Edge(
        CHANNELS,
        lambda: ptml.function(None, BatchNorm("bn", n_in=2)(X()), seed=0, **PYTHON)(np.ones((1, 2))),
        ValueError,
        r"bn.*at least 2 values per channel.*drop_last=True",
    ),
    "features that do not fit": Edge(
        CHANNELS, lambda: fc()(X(5)), ValueError, r"fc \(Linear\).*\(\.\.\., 2 features\)"
    ),
    # Linear weights are the transpose of torch's
    "torch's weight": Edge(
        TRANSPOSED,
        lambda: predict(fc(n_out=3)(X()), state=State({"fc/W": np.ones((3, 2)), "fc/b": np.ones(3)})),
        ValueError,
        r"'fc/W' is float64\[3,2\], where Linear\('fc', n_in=2, n_out=3\) declares float64\[2,3\]",
    ),
    "weight of another dtype": Edge(
        TRANSPOSED,
        lambda: predict(fc()(X()), state=ptml.init(fc(), seed=0).astype("float32")),
        ValueError,
        r"'fc/W' is float32\[2,2\].*Cast it: value\.astype\('float64'\)",
    ),
    # Backends do not always compute the same answer
    "float64 on MLX": Edge(
        BACKENDS,
        lambda: ptml.function(None, fc()(X()), seed=0, backend="mlx"),
        TypeError,
        "MLX has no float64.*floatX = 'float32'",
    ),
    "batch that would be rounded": Edge(
        BACKENDS,
        lambda: ptml.function([x := Input("x", (2,), dtype="float32")], x * 2, **PYTHON)(np.ones(2) / 3),
        TypeError,
        r"x takes float32\[2\]; got float64\[2\]\. Cast it: x\.astype\('float32'\)",
    ),
    "update that would be rounded": Edge(
        BACKENDS,
        lambda: ptml.function([], [], updates={(layer := fc()).W: layer.W.astype("float32")}, seed=0),
        TypeError,
        r"'fc/W' is float32\[2,2\].*write \.astype\('float64'\)",
    ),
    "backend that is none": Edge(
        BACKENDS,
        lambda: train(sgd(0.1), backend="cuda", compile_kwargs=None),
        ValueError,
        "backend is one of 'numba'",
    ),
}


def _symbolic_horizon(steps: int) -> Any:
    horizon = pt.lscalar("horizon")
    rate = cosine_schedule(0.1, horizon)(3)
    return ptml.function([horizon], rate, **PYTHON)(steps)


def _swapped() -> Any:
    one, two = fc(None), fc(None)
    return predict(one(two(X())), state=ptml.init((one, two), seed=0))


def _second_unnamed() -> Any:
    one, two, store = fc(None), fc(None), Store(seed=0)
    train(sgd(0.1), one, state=store)
    return train(sgd(0.1), Sequential(one, two), state=store)


@pytest.mark.parametrize("edge", EDGES)
def test_a_mistake_of_the_page_is_told_what_to_write(edge):
    with pytest.raises(EDGES[edge].error, match="(?s)" + EDGES[edge].says):
        EDGES[edge].mistake()


def dropout_masks() -> None:
    step = ptml.function(None, Dropout("drop", p=0.5)(X(64)), seed=0, **PYTHON)
    masks = [step(np.ones((1, 64))) for _ in range(3)]
    assert len({mask.tobytes() for mask in masks}) == 3


def schedules_move() -> None:
    rate = ptml.function([], scheduled_rate(), seed=0, **PYTHON)
    np.testing.assert_allclose([rate() for _ in range(3)], [0.0, 0.001, 0.002])


def statistics_move() -> None:
    step = ptml.function(None, BatchNorm("bn", n_in=2)(X()), seed=0, **PYTHON)
    step(np.array([[0.0, 2.0], [2.0, 6.0]]))
    np.testing.assert_allclose(step.state["bn/running_mean"], [0.1, 0.4])


def parameters_of_one_leaf_name() -> None:
    step = train(sgd(0.1), Sequential(fc("one"), fc("two")))
    before = step.state
    step(np.ones((3, 2)))
    assert list(step.state) == ["one/W", "one/b", "two/W", "two/b"]
    assert all((step.state[a] != before[a]).any() for a in step.state)


def a_clip_keeps_what_is_not_finite() -> None:
    layer = fc(bias=False)
    x = X()
    step = compile_train(
        (layer(x) * x).sum(), chain(clip_by_global_norm(1.0), sgd(0.1)), seed=0, compile_kwargs=PYTHON
    )
    with np.errstate(invalid="ignore"):
        step(np.array([[np.inf, 1.0]]))
    # An infinite coordinate is no quiet zero anywhere: what it touches is visibly not finite.
    assert not np.isfinite(step.state["fc/W"]).all()


def decay_tells_gradients_from_steps() -> None:
    parameter = ptml.slots(fc(bias=False))[0]
    loss = 0.0 * parameter.sum()
    coupled = chain(add_weight_decay(0.1), sgd(0.5))(loss, [parameter])
    decoupled = chain(sgd(0.5), add_weight_decay(0.1))(loss, [parameter])
    scaled = chain(sgd(1.0), add_weight_decay(0.1), scale(1e-3))(loss, [parameter])
    run = ptml.function(
        [], [parameter, *(u.amounts[parameter] for u in (coupled, decoupled, scaled))], seed=0, **PYTHON
    )
    W, one, two, three = run()
    for amount, factor in ((one, 0.05), (two, 0.1), (three, 1e-4)):
        np.testing.assert_allclose(amount, -factor * W, rtol=1e-12)


def pooling_tiles_and_convolution_slides() -> None:
    x = Input("x", (None, 9, 9, 1))
    conv = Conv2D("conv", in_channels=1, out_channels=1, kernel_size=3)
    assert MaxPool2D(kernel_size=3)(x).type.shape == (None, 3, 3, 1)
    assert conv(x).type.shape == MaxPool2D(kernel_size=3, stride=1)(x).type.shape == (None, 7, 7, 1)


def a_tied_maximum_is_its_first_tap() -> None:
    x = Input("x", (None, 4, 1))
    gradient = pytensor.grad(MaxPool1D(kernel_size=4)(x).sum(), x)
    for options in (PYTHON, {"backend": "numba"}):
        found = ptml.function([x], gradient, **options)(np.zeros((1, 4, 1)))
        assert found.ravel().tolist() == [1, 0, 0, 0]


def a_stack_of_unnamed_layers_round_trips() -> None:
    def network() -> Sequential:
        return Sequential(fc(None), ptml.activations.ReLU(), fc(None), BatchNorm(n_in=2), fc("named"))

    state = ptml.init(network(), seed=3)
    x, again = X(), network()
    assert predict(again(x), state=state).state == state
    assert [a for a in state if a.startswith("Linear")] == [
        "Linear_1/W",
        "Linear_1/b",
        "Linear_2/W",
        "Linear_2/b",
    ]


def a_weight_is_in_times_out() -> None:
    layer = fc(n_out=3, bias=False)
    W = np.arange(6.0).reshape(2, 3)
    run = predict(layer(X()), state=State({"fc/W": W}))
    np.testing.assert_array_equal(run(np.eye(2)), W)


def state_is_numpy_on_every_backend() -> None:
    with pytensor.config.change_flags(floatX="float32"):
        for backend in ("mlx", "jax"):
            pytest.importorskip(backend)
            layer = fc()
            step = compile_train(loss_of(layer), sgd(0.1), seed=0, backend=backend)
            step(np.ones((3, 2), "float32"))
            leaf = step.state["fc/W"]
            assert type(leaf) is np.ndarray
            assert leaf.dtype == np.float32


def masks_are_the_same_on_every_backend() -> None:
    with pytensor.config.change_flags(floatX="float32"):
        drop, x = Dropout("drop", p=0.5), X(64)
        programs = [ptml.function([x], drop(x), seed=0, **PYTHON)]
        for backend in ("jax", "mlx"):
            pytest.importorskip(backend)
            programs.append(ptml.function([x], drop(x), seed=0, backend=backend))
        for _ in range(2):
            masks = {program(np.ones((2, 64), "float32")).tobytes() for program in programs}
            assert len(masks) == 1


def two_programs_continue_one_stream() -> None:
    drop, x = Dropout("drop", p=0.5), X(64)
    first = ptml.function([x], drop(x), seed=0, **PYTHON)
    second = ptml.function([x], drop(x), state=first, **PYTHON)
    masks = {program(np.ones((1, 64))).tobytes() for program in (first, second, first, second)}
    assert len(masks) == 4


BLUNTED = {
    "dropout draws one mask for the life of the run": (FUNCTION, dropout_masks),
    "a schedule stays pinned at step zero": (FUNCTION, schedules_move),
    "running statistics never leave their initial values": (FUNCTION, statistics_move),
    "a clip rescues an infinite gradient in silence": (CLIPPING, a_clip_keeps_what_is_not_finite),
    "a decay is read as what it is not": (POSITION, decay_tells_gradients_from_steps),
    "two parameters called W are one": (NAMES, parameters_of_one_leaf_name),
    "an unnamed stack does not come back": (KEYWORDS, a_stack_of_unnamed_layers_round_trips),
    "a weight is stored as torch does": (TRANSPOSED, a_weight_is_in_times_out),
    "state is read as the backend's arrays": (BACKENDS, state_is_numpy_on_every_backend),
    "one seed gives other masks on another backend": (BACKENDS, masks_are_the_same_on_every_backend),
    "two functions replay one stream": (BACKENDS, two_programs_continue_one_stream),
    "a tied maximum splits its gradient": (BACKENDS, a_tied_maximum_is_its_first_tap),
    "a pool of three steps one at a time": (POOLING, pooling_tiles_and_convolution_slides),
}


@pytest.mark.parametrize("edge", BLUNTED)
def test_a_mistake_of_the_page_can_no_longer_be_made(edge):
    BLUNTED[edge][1]()


#: How many edges each section of the page has here; what is built later brings its own.
COUNTS = {
    FUNCTION: 15,
    POSITION: 9,
    CLIPPING: 2,
    NAMES: 9,
    SCHEDULES: 6,
    KEYWORDS: 16,
    CHANNELS: 5,
    TRANSPOSED: 3,
    BACKENDS: 8,
    POOLING: 1,
}


def test_every_section_of_the_page_that_concerns_what_is_built_is_covered():
    sections = [edge.section for edge in EDGES.values()] + [section for section, _ in BLUNTED.values()]
    assert {section: sections.count(section) for section in COUNTS} == COUNTS
    assert len(sections) == sum(COUNTS.values()) >= 70
