"""The losses: closed forms, limits at infinite logits, wrong labels, and shapes that do not match."""

from __future__ import annotations

import copy
import functools
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph

from ptml.backends.modes import backend_for
from ptml.labels import CheckLabels
from ptml.loss import (
    AbsoluteError,
    BinaryCrossEntropy,
    CrossEntropy,
    Huber,
    KLDivergence,
    Loss,
    SquaredError,
    supervised_loss,
)
from ptml.loss.softmax import Surprisal, surprisal

PY = Mode(linker="py", optimizer="fast_compile")
INF, NAN = np.inf, np.nan
LN2 = np.log(2.0)

LOSSES = [
    SquaredError(),
    AbsoluteError(),
    Huber(),
    CrossEntropy(),
    CrossEntropy(expect_onehot_labels=True),
    BinaryCrossEntropy(),
    KLDivergence(),
]
NAMES = [repr(loss) for loss in LOSSES]

#: What every backend must give: (loss, prediction, target, value, gradient of the value's sum).
EXACT = {
    "squared": (SquaredError(), [[1.0, 2.0]], [[1.0, 5.0]], 4.5, [[0.0, -3.0]]),
    "absolute": (AbsoluteError(), [[1.0, 2.0, 9.0]], [[1.0, 5.0, 8.0]], 4 / 3, [[0.0, -1 / 3, 1 / 3]]),
    "huber": (Huber(delta=2.0), [[0.5, 3.0]], [[0.0, 0.0]], 2.0625, [[0.25, 1.0]]),
    "huber, each": (
        Huber(delta=2.0, reduction="none"),
        [[0.5, 3.0, -2.0, 2.0, 1e30, -INF]],
        [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]],
        [[0.125, 4.0, 2.0, 2.0, 2e30, INF]],
        [[0.5, 2.0, -2.0, 2.0, 2.0, -2.0]],
    ),
    "one-hot logits": (
        CrossEntropy(expect_onehot_labels=True, expect_logits=True, reduction="none"),
        [[0.0, -INF], [1e4, 0.0], [INF, 0.0], [INF, 0.0], [0.0, -INF], [INF, INF], [-1e4, -1e4]],
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.25, 0.75]],
        [0.0, 1e4, 0.0, INF, INF, LN2, LN2],
        [[0.0, 0.0], [1.0, -1.0], [0.0, 0.0], [1.0, -1.0], [1.0, -1.0], [-0.5, 0.5], [0.25, -0.25]],
    ),
    "one-hot probabilities": (
        CrossEntropy(expect_onehot_labels=True, reduction="none"),
        [[1.0, 0.0], [0.25, 0.75], [1.0, 0.0]],
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]],
        [0.0, -0.5 * np.log(0.1875), INF],
        [[-1.0, 0.0], [-2.0, -2 / 3], [0.0, -INF]],
    ),
    "labels": (
        CrossEntropy(expect_logits=True, reduction="none"),
        [[1e4, 0.0], [0.0, -INF], [0.0, INF], [3.0, 3.0]],
        [1, 0, 1, 0],
        [1e4, 0.0, 0.0, LN2],
        [[1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [-0.5, 0.5]],
    ),
    "labels, probabilities": (
        CrossEntropy(reduction="sum"),
        [[1.0, 0.0], [0.5, 0.5]],
        [0, 1],
        LN2,
        [[-1.0, 0.0], [0.0, -2.0]],
    ),
    "ignored": (
        CrossEntropy(expect_logits=True, ignore_label=-100),
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [NAN, 5.0, -INF], [-INF, -INF, -INF]],
        [0, 1, -100, -100],
        0.36064536674416836,
        [
            *((scipy.special.softmax([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]], -1) - np.eye(3)[:2]) / 2),
            np.zeros(3),
            np.zeros(3),
        ],
    ),
    "all ignored": (
        CrossEntropy(expect_logits=True, ignore_label=-100, class_weights=(1, 2, 4), label_smoothing=0.1),
        [[2.0, 0.0, -1.0], [INF, -INF, NAN]],
        [-100, -100],
        0.0,
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ),
    "weighted": (
        CrossEntropy(expect_logits=True, class_weights=(1, 2, 4)),
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]],
        [0, 1],
        0.4242451491401293,
        None,
    ),
    "weighted, smoothed and ignored": (
        CrossEntropy(expect_logits=True, class_weights=(1, 2, 4), label_smoothing=0.1, ignore_label=9),
        [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [NAN, 1.0, 2.0]],
        [0, 1, 9],
        0.6712543579418758,
        None,
    ),
    "smoothed": (
        CrossEntropy(expect_logits=True, label_smoothing=0.1),
        [[2.0, 1.0, 0.0, -1.0, 0.5]],
        [0],
        0.7244379396277961,
        None,
    ),
    "binary logits": (
        BinaryCrossEntropy(expect_logits=True, positive_weight=3.0, reduction="none"),
        [[0.0, 0.0, INF, -INF, 1e4, -1e4, INF, -INF, 40.0]],
        [[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]],
        [[LN2, 3 * LN2, 0.0, 0.0, 1e4, 3e4, INF, INF, 3 * np.exp(-40.0)]],
        [[0.5, -1.5, 0.0, 0.0, 1.0, -3.0, 1.0, -3.0, -3 * np.exp(-40.0)]],
    ),
    "binary probabilities": (
        BinaryCrossEntropy(reduction="none"),
        [[0.0, 1.0, 0.25, 0.5]],
        [[0.0, 1.0, 1.0, 0.5]],
        [[0.0, 0.0, 2 * LN2, LN2]],
        [[1.0, -1.0, -4.0, 0.0]],
    ),
    "divergence": (
        KLDivergence(reduction="none"),
        [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]],
        [[0.0, 1.0], [0.25, 0.75], [1.0, 0.0]],
        [LN2, 0.0, 0.0],
        [[0.0, -2.0], [-1.0, -1.0], [-1.0, 0.0]],
    ),
    "divergence, logits": (
        KLDivergence(expect_logits=True, reduction="none"),
        [[0.0, 0.0], [0.0, INF], [-INF, 7.0]],
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]],
        [LN2, 0.0, 0.0],
        [[0.5, -0.5], [0.0, 0.0], [0.0, 0.0]],
    ),
}

FEW = ["huber, each", "one-hot logits", "weighted, smoothed and ignored", "binary logits"]


def mode_of(backend):
    if backend == "py":
        return PY
    target = backend_for(backend)
    target.load()
    return target.mode


def variable(value, dtype, name="x"):
    value = np.asarray(value)
    dtype = value.dtype if value.dtype.kind in "iub" else dtype
    return pt.tensor(name, dtype=str(dtype), shape=(None,) * value.ndim)


def graph(loss, prediction, target):
    """Give a loss, and its gradient, between two inputs of unknown shapes."""
    value = loss(prediction, target)
    return [value, pytensor.grad(value.sum(), prediction)]


def evaluate(loss, prediction, target, dtype="float64", mode=PY):
    """Give the value and the gradient of a loss of arrays."""
    inputs = [variable(prediction, dtype, "prediction"), variable(target, dtype, "target")]
    function = pytensor.function(inputs, graph(loss, *inputs), mode=mode)
    return function(np.asarray(prediction, inputs[0].dtype), np.asarray(target, inputs[1].dtype))


def value_of(*args, **kwargs):
    return evaluate(*args, **kwargs)[0]


@functools.cache
def computed(backend, dtype):
    """Compute `EXACT` by one compiled function, or what of it stands for the rest where compiling is slow."""
    names = list(EXACT) if backend in ("py", "numba", "jax") else FEW
    inputs, outputs, values = [], [], []
    for loss, prediction, target, *_ in map(EXACT.get, names):
        pair = [variable(prediction, dtype), variable(target, dtype)]
        inputs += pair
        outputs += graph(loss, *pair)
        values += [np.asarray(prediction, pair[0].dtype), np.asarray(target, pair[1].dtype)]
    found = [
        np.asarray(output) for output in pytensor.function(inputs, outputs, mode=mode_of(backend))(*values)
    ]
    return dict(zip(names, zip(found[::2], found[1::2], strict=True), strict=True))


# -- values


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_backend_gives_the_exact_values_and_gradients(backend, dtype):
    if (backend, dtype) == ("mlx", "float64"):
        pytest.skip("MLX has no float64")
    tolerance = {"float64": 1e-12, "float32": 2e-6}[dtype]
    for name, (value, gradient) in computed(backend, dtype).items():
        expected, expected_gradient = EXACT[name][3:]
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=0, err_msg=name)
        if expected_gradient is not None:
            np.testing.assert_allclose(gradient, expected_gradient, rtol=tolerance, atol=1e-8, err_msg=name)


def test_losses_agree_with_scipy():
    rng = np.random.default_rng(1)
    logits, target = rng.normal(size=(6, 4)), rng.dirichlet(np.ones(4), size=6)
    p = scipy.special.softmax(logits, axis=-1)
    divergence = scipy.special.kl_div(target, p).sum(axis=-1)
    entropy = scipy.special.entr(target).sum(axis=-1)
    for expect_logits, prediction in [(True, logits), (False, p)]:
        kl = KLDivergence(expect_logits=expect_logits, reduction="none")
        ce = CrossEntropy(expect_onehot_labels=True, expect_logits=expect_logits, reduction="none")
        np.testing.assert_allclose(value_of(kl, prediction, target), divergence, rtol=1e-12)
        np.testing.assert_allclose(value_of(ce, prediction, target), divergence + entropy, rtol=1e-12)
    np.testing.assert_allclose(
        value_of(Huber(delta=0.7), logits, target),
        scipy.special.huber(0.7, logits - target).mean(),
        rtol=1e-12,
    )
    binary = scipy.special.kl_div(target, scipy.special.expit(logits)) + scipy.special.kl_div(
        1 - target, scipy.special.expit(-logits)
    )
    binary += scipy.special.entr(target) + scipy.special.entr(1 - target)
    loss = BinaryCrossEntropy(expect_logits=True, reduction="none")
    # kl_div has terms - x + y, which cancel between yes and no.
    np.testing.assert_allclose(value_of(loss, logits, target), binary, rtol=1e-12)


@pytest.mark.parametrize(
    "loss",
    [
        SquaredError(),
        Huber(delta=0.5),
        CrossEntropy(expect_onehot_labels=True, class_weights=(1, 2, 0.5), label_smoothing=0.2),
        CrossEntropy(expect_onehot_labels=True, expect_logits=True, label_smoothing=0.2),
        BinaryCrossEntropy(positive_weight=2.0),
        BinaryCrossEntropy(expect_logits=True, positive_weight=2.0),
        KLDivergence(),
        KLDivergence(expect_logits=True),
    ],
    ids=repr,
)
def test_gradients_are_those_of_finite_differences(loss):
    rng = np.random.default_rng(2)
    prediction, target = rng.dirichlet(np.ones(3), size=(2, 4))
    inputs = [variable(prediction, "float64"), variable(target, "float64")]
    function = pytensor.function(inputs, graph(loss, *inputs), mode=PY)
    _, gradient = function(prediction, target)
    step = 1e-6
    for index in np.ndindex(prediction.shape):
        nudge = np.zeros_like(prediction)
        nudge[index] = step
        difference = (function(prediction + nudge, target)[0] - function(prediction - nudge, target)[0]) / 2
        np.testing.assert_allclose(difference / step, gradient[index], rtol=1e-6, atol=1e-9)


def test_second_derivatives_of_a_cross_entropy_are_those_of_its_closed_form():
    z = np.array([0.3, -1.2, 2.0])
    p = scipy.special.softmax(z)
    logits = pt.vector("logits")
    loss = CrossEntropy(expect_logits=True)(logits[None], pt.constant([1]))
    gradient = pytensor.grad(loss, logits)
    rows = [pytensor.grad(gradient[c], logits) for c in range(3)]
    hessian = pytensor.function([logits], rows, mode=PY)(z)
    np.testing.assert_allclose(hessian, np.diag(p) - np.outer(p, p), rtol=1e-12)


def test_the_gradient_of_a_divergence_flows_into_a_target_that_is_computed():
    t, p = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    target = pt.vector("target")
    loss = KLDivergence()(pt.constant(p), target)
    gradient = pytensor.function([target], pytensor.grad(loss, target), mode=PY)(t)
    np.testing.assert_allclose(gradient, np.log(t) - np.log(p) + 1, rtol=1e-12)


@given(
    arrays("float64", (3, 4), elements=st.floats(-50, 50)),
    st.floats(-1e3, 1e3),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_a_shift_of_all_logits_changes_no_cross_entropy(logits, shift, labels):
    loss = CrossEntropy(expect_logits=True, reduction="none")
    value, gradient = shift_tested(loss)(logits, labels)
    shifted, shifted_gradient = shift_tested(loss)(logits + shift, labels)
    np.testing.assert_allclose(shifted, value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shifted_gradient, gradient, rtol=1e-9, atol=1e-9)
    assert (value >= 0).all()
    np.testing.assert_allclose(gradient.sum(axis=-1), 0, atol=1e-12)


@functools.cache
def shift_tested(loss):
    inputs = [pt.dmatrix("logits"), pt.lvector("labels")]
    return pytensor.function(inputs, graph(loss, *inputs), mode=PY)


@settings(max_examples=30)
@given(st.data())
def test_integer_labels_and_their_one_hot_rows_have_one_loss(data):
    n_classes = data.draw(st.integers(1, 4))
    labels = data.draw(st.lists(st.integers(0, n_classes - 1), min_size=1, max_size=4))
    logits = data.draw(arrays("float64", (len(labels), n_classes), elements=st.floats(-9, 9)))
    weights = data.draw(st.lists(st.just(0.0) | st.floats(1e-3, 3), min_size=n_classes, max_size=n_classes))
    options = {
        "expect_logits": True,
        "class_weights": weights,
        "label_smoothing": data.draw(st.floats(0, 1)),
    }
    by_label = CrossEntropy(**options)(pt.constant(logits), pt.constant(labels))
    by_row = CrossEntropy(expect_onehot_labels=True, **options)(
        pt.constant(logits), pt.constant(np.eye(n_classes)[labels])
    )
    values = pytensor.function([], [by_label, by_row], mode=PY)()
    assert np.isfinite(values).all()
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_smoothing_and_weights_follow_the_documented_formula():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0])
    w, eps = np.array([0.5, 2.0, 1.0]), 0.3
    t = np.eye(3)[labels]
    losses = -(w * ((1 - eps) * t + eps / 3) * scipy.special.log_softmax(logits, axis=-1)).sum(axis=-1)
    for reduction, expected in [
        ("none", losses),
        ("sum", losses.sum()),
        ("mean", losses.sum() / w[labels].sum()),
    ]:
        loss = CrossEntropy(expect_logits=True, class_weights=w, label_smoothing=eps, reduction=reduction)
        np.testing.assert_allclose(value_of(loss, logits, labels), expected, rtol=1e-12)


def test_a_batch_of_classes_without_weight_costs_nothing():
    value, gradient = evaluate(CrossEntropy(expect_logits=True, class_weights=(0, 1)), [[1.0, 2.0]], [0])
    assert value == 0.0
    np.testing.assert_array_equal(gradient, [[0.0, 0.0]])


@pytest.mark.parametrize("ndim", [1, 3])
def test_the_classes_are_the_last_axis_whatever_comes_before(ndim):
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(2, 3, 4)[-ndim:])
    labels = rng.integers(4, size=logits.shape[:-1])
    picked = np.take_along_axis(scipy.special.log_softmax(logits, -1), labels[..., None], -1)[..., 0]
    loss = CrossEntropy(expect_logits=True, reduction="none")
    np.testing.assert_allclose(value_of(loss, logits, labels), -picked, rtol=1e-12)


def test_a_network_gone_wrong_is_not_hidden():
    for loss in (SquaredError(), AbsoluteError(), Huber(), BinaryCrossEntropy(expect_logits=True)):
        assert np.isnan(value_of(loss, [0.5, NAN], [0.0, 1.0]))
    for logits in ([[0.0, NAN]], [[-INF, -INF]]):
        assert np.isnan(value_of(CrossEntropy(expect_logits=True), logits, [0]))


def test_reduction_none_gives_the_losses_and_the_others_their_mean_and_sum():
    prediction, target = [[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]
    each = value_of(SquaredError(reduction="none"), prediction, target)
    np.testing.assert_array_equal(each, [[1.0, 4.0], [9.0, 16.0]])
    assert value_of(SquaredError(reduction="mean"), prediction, target) == 7.5
    assert value_of(SquaredError(reduction="sum"), prediction, target) == 30.0


def test_the_divergence_is_averaged_over_distributions():
    p, t = [[0.5, 0.5], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]
    np.testing.assert_allclose(value_of(KLDivergence(), p, t), LN2 / 2, rtol=1e-15)


# -- labels that are no class


@pytest.mark.parametrize("backend", ["py", "numba"])
@pytest.mark.parametrize("label", [3, 255, -1, -100])
def test_a_label_outside_the_classes_is_an_error_that_names_it(backend, label):
    loss = CrossEntropy(expect_logits=True)
    logits, labels = pt.tensor("logits", shape=(None, 3)), pt.lvector("labels")
    function = pytensor.function([logits, labels], loss(logits, labels), mode=mode_of(backend))
    np.testing.assert_allclose(function(np.array([[0.0, 1.0, 2.0]]), np.array([2])), 0.4076059644443803)
    with pytest.raises(ValueError, match=r"CrossEntropy: label .* is not one of the .* classes") as caught:
        function(np.array([[0.0, 1.0, 2.0]] * 2), np.array([0, label]))
    message, *numbers = caught.value.args
    assert f"label {label} is not one of the 3 classes, which are numbered 0 to 2" in message.format(*numbers)


@pytest.mark.backends("jax", "mlx", "pytorch")
def test_a_label_outside_the_classes_is_nan_where_a_backend_cannot_raise(backend):
    loss = CrossEntropy(expect_logits=True, ignore_label=-100, reduction="none")
    logits = np.zeros((6, 3), dtype="float32")
    labels = np.array([0, 3, 255, -1, -100, 2**32])
    if backend == "jax":
        labels[-1] = 3  # without its 64-bit mode, JAX takes 2**32 for 0 before we see it
    value, gradient = evaluate(loss, logits, labels, "float32", mode_of(backend))
    np.testing.assert_allclose(value, [np.log(3.0), NAN, NAN, NAN, 0.0, NAN], rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(gradient).all(axis=-1), np.isnan(value))
    np.testing.assert_array_equal(np.isnan(gradient).any(axis=-1), np.isnan(value))


def test_an_ignored_label_is_no_error_and_others_still_are():
    loss = CrossEntropy(expect_logits=True, ignore_label=255)
    labels = np.array([1, 255], dtype="uint8")
    np.testing.assert_allclose(value_of(loss, [[0.0, 0.0], [5.0, 1.0]], labels), LN2)
    labels = np.array([1, 254], dtype="uint8")
    with pytest.raises(
        ValueError, match=r"label 254 is not one of the 2 .*, nor the declared ignore_label=255"
    ):
        value_of(loss, [[0.0, 0.0], [5.0, 1.0]], labels)


def test_an_ignored_label_may_be_a_class():
    loss = CrossEntropy(expect_logits=True, ignore_label=0)
    np.testing.assert_allclose(value_of(loss, [[0.0, 0.0], [5.0, 1.0]], [1, 0]), LN2)


@pytest.mark.parametrize("target", [2.0, -1.0, 255.0])
def test_a_binary_target_outside_zero_and_one_is_an_error(target):
    with pytest.raises(ValueError, match=f"BinaryCrossEntropy: target {target} is not between 0 and 1"):
        value_of(BinaryCrossEntropy(expect_logits=True), [0.0, 0.0], [1.0, target])


@pytest.mark.backends("jax", "mlx", "pytorch")
def test_a_binary_target_outside_zero_and_one_is_nan_where_a_backend_cannot_raise(backend):
    loss = BinaryCrossEntropy(expect_logits=True, reduction="none")
    value, gradient = evaluate(
        loss, [0.0, 0.0], np.array([1, 255], dtype="uint8"), "float32", mode_of(backend)
    )
    np.testing.assert_allclose(value, [LN2, NAN], rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(gradient), [False, True])


# -- shapes and dtypes


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("floatx", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_and_its_gradient_have_the_dtype_of_the_prediction(loss, dtype, floatx, reduction):
    loss = copy.replace(loss, reduction=reduction)
    if isinstance(loss, CrossEntropy):
        loss = copy.replace(loss, class_weights=(1, 2, 3), label_smoothing=0.1)
        if not loss.expect_onehot_labels:
            loss = copy.replace(loss, ignore_label=1)
    with pytensor.config.change_flags(floatX=floatx):
        prediction = pt.tensor("prediction", dtype=dtype, shape=(None, 3))
        value, target = supervised_loss(prediction, loss)
        assert value.type.dtype == dtype
        if target.type.ndim == 2:
            assert loss(prediction, target.astype("float64")).type.dtype == dtype
            assert loss(prediction, target.astype("int64")).type.dtype == dtype
        # The gradient of PyTensor's cast from float16 stays as wide as what it was cast to.
        gradient = pytensor.grad(value.sum(), prediction)
        assert gradient.type.dtype == ("float32" if dtype == "float16" else dtype)


def test_a_float16_prediction_is_squared_and_summed_in_float32():
    prediction, target = np.full(4, 300.0, dtype="float16"), np.zeros(4, dtype="float16")
    assert value_of(Huber(), prediction, target, "float16") == np.float16(299.5)
    loss = CrossEntropy(expect_logits=True)
    wide = np.zeros((1, 70_000), dtype="float16")
    np.testing.assert_allclose(value_of(loss, wide, [5], "float16"), np.log(70_000), rtol=1e-3)


@pytest.mark.parametrize("loss", [x for x in LOSSES if repr(x) != "CrossEntropy()"], ids=repr)
def test_a_column_against_a_row_is_refused(loss):
    column, row = pt.tensor(shape=(None, 1)), pt.tensor(shape=(None,))
    name = type(loss).__name__
    with pytest.raises(
        ValueError, match=rf"{name}: prediction has shape \(None, 1\), target \(None,\); they"
    ):
        loss(column, row)
    with pytest.raises(
        ValueError, match=rf"{name}: prediction has shape \(None,\), target \(None, 1\); they"
    ):
        loss(row, column)
    with pytest.raises(ValueError, match=r"prediction has shape \(None, 1\), target \(None, 3\); .* same\.$"):
        loss(column, pt.tensor(shape=(None, 3)))


def test_the_error_of_a_missing_axis_says_how_to_add_it():
    with pytest.raises(ValueError, match=r"Write target\[\.\.\., None\], or prediction\[\.\.\., 0\]\."):
        SquaredError()(pt.matrix(), pt.vector())
    with pytest.raises(ValueError, match=r"Write prediction\[\.\.\., None\], or target\[\.\.\., 0\]\."):
        SquaredError()(pt.vector(), pt.matrix())
    with pytest.raises(ValueError, match=r"Integer labels need CrossEntropy\(expect_onehot_labels=False\)\."):
        CrossEntropy(expect_onehot_labels=True)(pt.matrix(), pt.lvector())
    with pytest.raises(ValueError, match=r"One-hot rows need CrossEntropy\(expect_onehot_labels=True\)\."):
        CrossEntropy()(pt.matrix(), pt.lmatrix())


def test_a_one_hot_target_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"prediction has shape \(None, 3\), target \(None, 4\)"):
        CrossEntropy(expect_onehot_labels=True)(pt.tensor(shape=(None, 3)), pt.tensor(shape=(None, 4)))


def test_labels_of_another_batch_are_refused():
    with pytest.raises(
        ValueError, match=r"shape \(8, 3\), labels \(9,\); they must be the same but for the last"
    ):
        CrossEntropy()(pt.tensor(shape=(8, 3)), pt.tensor(shape=(9,), dtype="int64"))


@pytest.mark.parametrize("backend", ["py", "jax", "mlx"])
def test_shapes_that_only_the_run_knows_are_compared_there(backend):
    mode = mode_of(backend) if backend == "py" else pytest.importorskip(backend) and mode_of(backend)
    with pytest.raises(ValueError, match=r"SquaredError: prediction has shape \(3, 1\), target \(3, 2\)"):
        value_of(SquaredError(), np.zeros((3, 1)), np.zeros((3, 2)), "float32", mode)
    with pytest.raises(ValueError, match=r"CrossEntropy: prediction has shape \(3, 2\), labels \(1,\)"):
        value_of(CrossEntropy(), np.ones((3, 2)), np.zeros(1, dtype="int64"), "float32", mode)


def test_float_labels_are_refused():
    with pytest.raises(TypeError, match=r"labels must be integers; got .*float64.*labels\.astype\('int64'\)"):
        CrossEntropy()(pt.matrix(), pt.vector())


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex128"])
def test_a_prediction_that_is_not_floating_is_refused(dtype):
    with pytest.raises(
        TypeError, match=rf"the prediction must be floating-point; got .*{dtype}.*\(prediction, tar"
    ):
        CrossEntropy()(pt.tensor(dtype=dtype, shape=(None, 3)), pt.matrix())


@pytest.mark.parametrize("loss", [CrossEntropy(), KLDivergence()], ids=repr)
def test_a_prediction_without_classes_is_refused(loss):
    with pytest.raises(ValueError, match=r"the prediction is a scalar; its last axis must hold the classes"):
        loss(pt.scalar(), pt.scalar())


def test_a_graph_of_unknown_classes_agrees_with_one_of_known():
    loss = CrossEntropy(expect_logits=True, label_smoothing=0.3)
    logits, labels = np.array([[0.1, 0.2, 0.9], [1.0, 0.0, 2.0]]), np.array([2, 0])
    fixed = pytensor.function([], loss(pt.constant(logits), pt.constant(labels)), mode=PY)()
    np.testing.assert_allclose(value_of(loss, logits, labels), fixed, rtol=1e-14)


def test_the_surprisal_vectorizes():
    z, batch = pt.vector("z"), pt.matrix("batch")
    value = np.array([[0.0, 1.0], [2.0, -INF]])
    out = vectorize_graph(surprisal(z), {z: batch})
    assert isinstance(out.owner.op, Surprisal)
    expected = -scipy.special.log_softmax(value, axis=-1)
    np.testing.assert_allclose(pytensor.function([batch], out, mode=PY)(value), expected)


def test_the_probabilities_of_a_surprisal_have_a_gradient_too():
    z = np.array([0.3, -1.2, 2.0])
    p = scipy.special.softmax(z)
    logits = pt.vector("logits")
    gradient = pytensor.grad(Surprisal()(logits)[1][0], logits)
    np.testing.assert_allclose(pytensor.function([logits], gradient, mode=PY)(z), p[0] * (np.eye(3)[0] - p))


# -- targets


@pytest.mark.parametrize(
    ("loss", "dtype", "shape"),
    [
        (SquaredError(), "float32", (None, 3)),
        (BinaryCrossEntropy(), "float32", (None, 3)),
        (KLDivergence(), "float32", (None, 3)),
        (CrossEntropy(expect_onehot_labels=True), "float32", (None, 3)),
        (CrossEntropy(), "int64", (None,)),
    ],
    ids=repr,
)
def test_a_supervised_loss_makes_the_target_that_the_loss_takes(loss, dtype, shape):
    prediction = pt.tensor("prediction", dtype="float32", shape=(None, 3))
    value, target = supervised_loss(prediction, loss, name="y")
    assert (target.name, target.type.dtype, target.type.shape) == ("y", dtype, shape)
    assert target.owner is None
    assert value.type.ndim == 0
    assert supervised_loss(prediction, loss)[1].name == "target"


def test_a_supervised_loss_trains_a_column_against_a_column():
    prediction = pt.tensor("prediction", shape=(None, 1))
    loss, target = supervised_loss(prediction, SquaredError())
    score = pytensor.function([prediction, target], loss, mode=PY)
    assert score(np.array([[1.0], [2.0]]), np.array([[1.5], [2.5]])) == 0.25


def test_what_is_no_loss_is_refused_by_supervised_loss():
    prediction = pt.matrix("prediction")
    with pytest.raises(TypeError, match=r"got <class .*SquaredError'>\. Write SquaredError\(\)\."):
        supervised_loss(prediction, SquaredError)
    with pytest.raises(TypeError, match=r"The prediction comes first\."):
        supervised_loss(SquaredError(), prediction)
    with pytest.raises(TypeError, match=r"takes a loss such as SquaredError\(\); got <function"):
        supervised_loss(prediction, lambda prediction, target: prediction)


def test_a_loss_of_ones_own_needs_only_a_build():
    class Hinge(Loss):
        margin: float = 1.0

        def build(self, prediction, target):
            return pt.maximum(self.margin - prediction * target, 0)

    assert value_of(Hinge(margin=2.0), [0.5, 3.0], [1.0, 1.0]) == 0.75
    with pytest.raises(TypeError, match=r"Loss defines no build\(self, prediction, target\)"):
        Loss()(pt.vector(), pt.vector())


# -- losses as values


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_a_loss_is_a_value(loss):
    assert loss == copy.copy(loss) == pickle.loads(pickle.dumps(loss))
    assert hash(loss) == hash(copy.copy(loss))
    assert eval(repr(loss)) == loss
    assert copy.replace(loss, reduction="sum") != loss


def test_the_repr_of_a_loss_is_the_call_that_makes_it():
    loss = CrossEntropy(expect_logits=True, class_weights=np.array([1.0, 2.0]), ignore_label=-100)
    assert repr(loss) == "CrossEntropy(expect_logits=True, class_weights=(1.0, 2.0), ignore_label=-100)"


def test_reduction_none_may_be_written_as_none():
    assert SquaredError(reduction=None) == SquaredError(reduction="none")


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: SquaredError(reduction="maen"),
            ValueError,
            r"SquaredError: reduction .*'maen'; .* 'mean'\?$",
        ),
        (
            lambda: SquaredError(reduction="avg"),
            ValueError,
            r"one of 'mean', 'sum' and 'none' .*; got 'avg'\.$",
        ),
        (
            lambda: Huber(reduction=lambda x: x),
            ValueError,
            r"Huber: .*Write reduction='none', and apply the fun",
        ),
        (lambda: Huber(delta=0.0), ValueError, r"Huber: delta must be a positive number; got 0\.0"),
        (lambda: Huber(delta=NAN), ValueError, r"Huber: delta must be a positive number; got nan"),
        (lambda: Huber(2.0), TypeError, r"positional argument"),
        (lambda: CrossEntropy(from_logits=True), TypeError, r"CrossEntropy has no argument 'from_logits'"),
        (lambda: CrossEntropy(expect_logits=1), TypeError, r"expect_logits must be True or False; got 1"),
        (
            lambda: CrossEntropy(label_smoothing=1.1),
            ValueError,
            r"label_smoothing must be a number from 0 to 1",
        ),
        (lambda: CrossEntropy(label_smoothing=-0.1), ValueError, r"label_smoothing must be .*; got -0\.1"),
        (
            lambda: CrossEntropy(class_weights=(1, -1)),
            ValueError,
            r"class_weights must be finite .*\(1, -1\)",
        ),
        (lambda: CrossEntropy(class_weights=(1, NAN)), ValueError, r"class_weights must be finite"),
        (lambda: CrossEntropy(class_weights=()), ValueError, r"class_weights must be .*, one for each class"),
        (lambda: CrossEntropy(class_weights=2.0), ValueError, r"class_weights must be .*; got 2\.0"),
        (
            lambda: CrossEntropy(ignore_label=1.5),
            TypeError,
            r"ignore_label must be an integer, or None; got 1\.5",
        ),
        (
            lambda: CrossEntropy(expect_onehot_labels=True, ignore_label=0),
            ValueError,
            r"ignore_label=0 is for integer labels",
        ),
        (
            lambda: BinaryCrossEntropy(positive_weight=0),
            ValueError,
            r"positive_weight must be a positive number",
        ),
        (
            lambda: KLDivergence(expect_logits="yes"),
            TypeError,
            r"expect_logits must be True or False; got 'yes'",
        ),
    ],
)
def test_an_impossible_hyperparameter_is_refused_by_name(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_class_weights_of_another_number_than_the_classes_are_refused():
    with pytest.raises(
        ValueError, match=r"CrossEntropy has 2 class_weights, and the prediction 3 classes \(shape"
    ):
        CrossEntropy(class_weights=(1, 2))(pt.tensor(shape=(None, 3)), pt.lvector())
    # Where the static shape does not tell, the running graph does.
    with pytest.raises(AssertionError, match=r"expected \(None, 2\)"):
        value_of(CrossEntropy(class_weights=(1, 2)), np.ones((2, 3)), np.array([0, 1]))


def test_labels_are_checked_also_where_nothing_but_the_gradient_is_computed():
    logits, labels = pt.matrix("logits"), pt.lvector("labels")
    gradient = pytensor.grad(CrossEntropy(expect_logits=True)(logits, labels), logits)
    function = pytensor.function([logits, labels], gradient, mode=PY)
    assert any(isinstance(node.op, CheckLabels) for node in function.maker.fgraph.apply_nodes)
    with pytest.raises(ValueError, match="label 7 is not one of the 2 classes"):
        function(np.zeros((1, 2)), np.array([7]))


@pytest.mark.parametrize(
    ("loss", "prediction", "target"),
    [
        (CrossEntropy(), [[0.5, -0.5]], [0]),
        (CrossEntropy(expect_onehot_labels=True), [[2.0, 0.5]], [[1.0, 0.0]]),
        (KLDivergence(), [[-0.1, 1.1]], [[0.5, 0.5]]),
        (BinaryCrossEntropy(), [[1.5, 0.5]], [[1.0, 0.0]]),
    ],
)
def test_logits_where_probabilities_are_expected_are_refused_on_backends_that_can_raise(
    loss, prediction, target
):
    P, T = pt.matrix("P"), pt.tensor("T", shape=(None,) * np.ndim(target), dtype=np.asarray(target).dtype)
    for backend in ("py", "numba"):
        run = pytensor.function([P, T], loss(P, T), mode=mode_of(backend))
        with pytest.raises(ValueError, match="no probability"):
            run(np.array(prediction), np.array(target))
