"""The checks of targets: what passes, what raises, and on which backend."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.gradient import DisconnectedInputError
from pytensor.graph.replace import vectorize_graph

from ptml.labels import CheckLabels, CheckProbabilities, CheckShape

PY = Mode(linker="py", optimizer="fast_compile")
MODES = {"py": PY, "numba": "NUMBA", "jax": "JAX", "mlx": "MLX", "pytorch": "PYTORCH"}
CLASS = "CrossEntropy: label {} is not one of the 3 classes, which are numbered 0 to 2"


def mode_of(backend):
    if backend not in ("py", "c"):
        importlib.import_module(f"ptml.backends.{backend}").load()
    return MODES[backend]


def run(check, *values, mode=PY):
    """Check arrays of unknown static shapes."""
    inputs = [pt.tensor(dtype=value.dtype, shape=(None,) * value.ndim) for value in map(np.asarray, values)]
    # Doubled, because a function that gives its input back would be given a copy to make.
    return np.asarray(pytensor.function(inputs, 2 * check(*inputs), mode=mode)(*map(np.asarray, values))) / 2


def message_of(caught):
    text, *values = caught.value.args
    return text.format(*values)


# -- labels


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_labels_that_are_classes_pass_unchanged(dtype, shape):
    labels = np.resize([2, 0, 1], shape).astype(dtype)
    np.testing.assert_array_equal(run(CheckLabels("CrossEntropy"), labels, np.int64(3)), labels)


@pytest.mark.parametrize("label", [3, 255, -1, -100])
def test_a_label_outside_the_classes_raises(label):
    with pytest.raises(
        ValueError, match=CLASS.format(label) + rf"\. .* write CrossEntropy\(ignore_label={label}\)"
    ):
        run(CheckLabels("CrossEntropy"), [0, label], np.int64(3))


def test_a_declared_label_passes_and_another_does_not():
    check = CheckLabels("CrossEntropy", ignore=-100)
    np.testing.assert_array_equal(run(check, [1, -100], np.int64(3)), [1, -100])
    with pytest.raises(ValueError, match=CLASS.format(-1) + r", nor the declared ignore_label=-100\."):
        run(check, [-100, -1], np.int64(3))


@pytest.mark.parametrize("labels", [pt.vector(), pt.tensor(dtype="bool", shape=(None,))])
def test_labels_that_are_no_integers_are_refused_when_the_graph_is_built(labels):
    with pytest.raises(TypeError, match=r"takes integer labels, and was given .*labels\.astype\('int64'\)"):
        CheckLabels("CrossEntropy")(labels, 3)


def test_no_gradient_flows_through_labels():
    x = pt.vector("x")
    checked = CheckLabels("CrossEntropy")(x.astype("int64"), 3)
    with pytest.raises(DisconnectedInputError, match=r"Backtrace"):
        pytensor.grad(checked.astype("float64").sum(), x)


def test_constant_labels_are_checked_by_the_call_and_not_by_the_compiler():
    function = pytensor.function([], CheckLabels("CrossEntropy")(pt.constant([5]), 3), mode="CVM")
    with pytest.raises(ValueError, match=CLASS.format(5)):
        function()


# -- probabilities


def test_probabilities_pass_unchanged_and_nan_with_them():
    values = [0.0, 0.25, 1.0, np.nan]
    np.testing.assert_array_equal(run(CheckProbabilities("BinaryCrossEntropy"), values), values)


@pytest.mark.parametrize("value", [-1e-9, 1.5, np.inf])
def test_what_is_no_probability_raises(value):
    with pytest.raises(ValueError, match=f"BinaryCrossEntropy: target {value} is not between 0 and 1"):
        run(CheckProbabilities("BinaryCrossEntropy"), [0.5, value])


def test_probabilities_that_are_integers_are_refused_when_the_graph_is_built():
    with pytest.raises(TypeError, match=r"takes float targets, and was given .*target\.astype\('float32'\)"):
        CheckProbabilities("BinaryCrossEntropy")(pt.lvector())


def test_the_gradient_flows_through_probabilities():
    x = pt.vector("x")
    gradient = pytensor.grad((CheckProbabilities("BinaryCrossEntropy")(x) ** 2).sum(), x)
    np.testing.assert_allclose(pytensor.function([x], gradient, mode=PY)([0.25, 0.5]), [0.5, 1.0])


# -- shapes


@pytest.mark.parametrize(
    ("labels", "target", "prediction"),
    [(False, (2, 3), (2, 3)), (True, (2,), (2, 3)), (False, (0,), (0,)), (True, (), (3,))],
)
def test_shapes_that_agree_pass(labels, target, prediction):
    value = np.arange(np.prod(target)).reshape(target)
    np.testing.assert_array_equal(run(CheckShape("X", labels), value, np.zeros(prediction)), value)


@pytest.mark.parametrize("backend", ["py", "numba", "jax", "mlx", "pytorch"])
def test_shapes_that_differ_raise_on_every_backend(backend):
    if backend != "py":
        pytest.importorskip({"pytorch": "torch", "mlx": "mlx.core"}.get(backend, backend))
    mode = mode_of(backend)
    target, prediction = np.zeros((3, 1), "float32"), np.zeros((3, 2), "float32")
    with pytest.raises(
        ValueError, match=r"SquaredError: prediction has shape .* they must be the same"
    ) as caught:
        run(CheckShape("SquaredError"), target, prediction, mode=mode)
    assert "prediction has shape (3, 2), target (3, 1);" in message_of(caught)
    np.testing.assert_array_equal(run(CheckShape("SquaredError"), target, target, mode=mode), target)


def test_a_checked_target_knows_what_is_known_of_either_shape():
    target, prediction = pt.tensor(shape=(None, 1)), pt.tensor(shape=(8, None))
    assert CheckShape("SquaredError")(target, prediction).type.shape == (8, 1)
    assert CheckShape("SquaredError", labels=True)(pt.lvector(), prediction).type.shape == (8,)


def test_the_gradient_flows_through_a_checked_target_and_not_into_the_prediction():
    target, prediction = pt.vector("target"), pt.vector("prediction")
    checked = CheckShape("SquaredError")(target, prediction).sum()
    gradient = pytensor.function([target, prediction], pytensor.grad(checked, target), mode=PY)
    np.testing.assert_array_equal(gradient([1.0, 2.0], [0.0, 0.0]), [1.0, 1.0])
    with pytest.raises(DisconnectedInputError, match="prediction"):
        pytensor.grad(checked, prediction)


# -- kernels and rewriting


def test_numba_raises_with_a_message_and_the_numbers_for_it():
    labels, p = pt.lmatrix("labels"), pt.vector("p", dtype="float32")
    checked = [2 * CheckLabels("CrossEntropy", ignore=-100)(labels, 3), 2 * CheckProbabilities("Binary")(p)]
    function = pytensor.function([labels, p], checked, mode=mode_of("numba"))
    good, half = np.array([[0, 2], [-100, 1]]), np.array([0.5], dtype="float32")
    np.testing.assert_array_equal(function(good, half)[0], 2 * good)
    np.testing.assert_array_equal(function(good.T, half)[0], 2 * good.T)
    with pytest.raises(ValueError, match="CrossEntropy: label") as caught:
        function(good + 1, half)
    assert message_of(caught).startswith(CLASS.format(3))
    with pytest.raises(ValueError, match="Binary: target") as caught:
        function(good, np.array([0.5, 1.5], dtype="float32"))
    assert message_of(caught).startswith("Binary: target 1.5 is not between 0 and 1.")


@pytest.mark.backends("jax", "mlx", "pytorch")
def test_labels_pass_unseen_where_a_backend_cannot_raise(backend):
    labels = np.array([0, 7, -1])
    np.testing.assert_array_equal(run(CheckLabels("X"), labels, np.int64(3), mode=mode_of(backend)), labels)
    p = np.array([0.5, 2.0], dtype="float32")
    np.testing.assert_array_equal(run(CheckProbabilities("X"), p, mode=mode_of(backend)), p)


WARM = """
import sys
import numpy as np, pytensor, pytensor.tensor as pt
from ptml.backends.numba import load
from ptml.labels import CheckLabels, CheckProbabilities, CheckShape

load()
labels, p, logits = pt.lvector("labels"), pt.vector("p"), pt.matrix("logits")
function = pytensor.function(
    [labels, p, logits],
    [CheckLabels("X")(CheckShape("X", labels=True)(labels, logits), 3) + 1, CheckProbabilities("X")(p) + 1],
    mode="NUMBA",
)
for label, target, rows in (2, 0.5, 2), (9, 0.5, 2), (2, 1.5, 2), (2, 0.5, 1):
    try:
        found = function(np.array([0, label]), np.array([target]), np.zeros((rows, 3)))
        print(*(out.tolist() for out in found))
    except ValueError as error:
        print(error.args[0].format(*error.args[1:]))
"""


def test_numba_loads_its_kernels_from_the_cache_in_a_second_process(tmp_path):
    root = Path(__file__).parents[2]
    flags = f"floatX=float64,base_compiledir={tmp_path}"
    environment = os.environ | {"PYTENSOR_FLAGS": flags, "PYTHONPATH": str(root)}
    printed = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", WARM], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    assert printed[0] == printed[1]
    right, label, target, shape = printed[0]
    assert right == "[1, 3] [1.5]"
    assert label.startswith("X: label 9 is not one of the 3 classes, which are numbered 0 to 2.")
    assert target.startswith("X: target 1.5 is not between 0 and 1.")
    assert shape.startswith(
        "X: prediction has shape (1, 3), labels (2,); they must be the same but for the last"
    )


def test_a_check_vectorizes_with_what_it_checks():
    labels, batch = pt.lvector("labels"), pt.lmatrix("batch")
    out = vectorize_graph(CheckLabels("CrossEntropy")(labels, 3), {labels: batch})
    assert isinstance(out.owner.op, CheckLabels)
    assert out.type.ndim == 2
    p, many = pt.vector("p"), pt.matrix("many")
    assert vectorize_graph(CheckProbabilities("X")(p), {p: many}).type.ndim == 2


def test_a_batched_number_of_classes_is_refused():
    labels, count = pt.lvector("labels"), pt.lscalar("count")
    with pytest.raises(ValueError, match="a batched number of classes"):
        vectorize_graph(CheckLabels("CrossEntropy")(labels, count), {count: pt.lvector("counts")})


@pytest.mark.parametrize("batched", ["target", "prediction", "both"])
def test_a_check_of_shapes_vectorizes_over_either_tensor(batched):
    target, prediction = pt.vector("target"), pt.vector("prediction")
    batches = {target: pt.matrix("targets"), prediction: pt.matrix("predictions")}
    replaced = {v: batch for v, batch in batches.items() if batched in (v.name, "both")}
    out = vectorize_graph(CheckShape("X")(target, prediction), replaced)
    values = {
        variable: np.zeros((2, 3) if variable.type.ndim == 2 else 3)
        for variable in (replaced.get(target, target), replaced.get(prediction, prediction))
    }
    assert pytensor.function(list(values), out, mode=PY)(*values.values()).shape == (2, 3)
    short = [value[..., :2] if v.name.startswith("target") else value for v, value in values.items()]
    with pytest.raises(ValueError, match=r"X: prediction has shape \(2, 3\), target \(2, 2\)"):
        pytensor.function(list(values), out, mode=PY)(*short)


def test_the_shape_of_a_checked_difference_is_known_without_comparing():
    target, prediction = pt.matrix("target"), pt.matrix("prediction")
    difference = prediction - CheckShape("X")(target, prediction)
    function = pytensor.function([target, prediction], difference.size, mode="CVM")
    assert "Assert" not in pytensor.dprint(function, file="str")
