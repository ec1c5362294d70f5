"""Metrics: what scikit-learn and NumPy say, whatever batches the rows come in, on every backend."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from sklearn import metrics as reference

import ptml
from ptml.layers import Input
from ptml.loss import AbsoluteError, CrossEntropy, SquaredError
from ptml.metrics import (
    F1,
    R2,
    Accuracy,
    Average,
    BinaryAccuracy,
    ConfusionMatrix,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    Perplexity,
    Precision,
    Recall,
    RootMeanSquaredError,
    TopKAccuracy,
)
from ptml_state import Role

ROWS, CLASSES = 50, 5


def _scores(dtype):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(ROWS, CLASSES)).round(1)  # rounded, so that some are equal
    return scores.astype(dtype), rng.integers(0, CLASSES - 1, ROWS)


def _numbers(dtype):
    rng = np.random.default_rng(1)
    target = 1000 + rng.normal(size=(ROWS, 2))
    return (target + rng.normal(size=(ROWS, 2))).astype(dtype), target.astype(dtype)


def _batches(*arrays):
    for start, stop in [(0, 1), (1, 20), (20, ROWS)]:
        yield tuple(array[start:stop] for array in arrays)


OF_CLASSES = {
    "accuracy": Accuracy(),
    "top": TopKAccuracy(k=2),
    "confusion": ConfusionMatrix(n_classes=CLASSES),
    "macro": F1(n_classes=CLASSES),
    "micro": F1(n_classes=CLASSES, average="micro"),
    "weighted": F1(n_classes=CLASSES, average="weighted"),
    "precision": Precision(n_classes=CLASSES, average=None),
    "recall": Recall(n_classes=CLASSES),
    "loss": CrossEntropy(expect_logits=True),
    "perplexity": Perplexity(),
}
OF_NUMBERS = {
    "absolute": MeanAbsoluteError(),
    "squared": MeanSquaredError(),
    "root": RootMeanSquaredError(),
    "R2": R2(),
    "loss": AbsoluteError(),
}


def test_classification_agrees_with_scikit_learn_on_every_backend(backend):
    scores, labels = _scores("float32")
    evaluate = ptml.compile_evaluate(
        Input("scores", shape=(None, CLASSES), dtype="float32"), OF_CLASSES, backend=backend
    )
    found = evaluate.over(_batches(scores, labels))
    said = scores.argmax(axis=1)
    shifted = scores.astype("float64") - scores.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    entropy = -log_p[np.arange(ROWS), labels].mean()
    order = np.argsort(-scores, axis=1, kind="stable")
    expected = {
        "accuracy": reference.accuracy_score(labels, said),
        "top": np.mean([label in top for label, top in zip(labels, order[:, :2], strict=True)]),
        "confusion": reference.confusion_matrix(labels, said, labels=range(CLASSES)),
        "macro": reference.f1_score(labels, said, average="macro"),
        "micro": reference.f1_score(labels, said, average="micro"),
        "weighted": reference.f1_score(labels, said, average="weighted"),
        "precision": reference.precision_score(labels, said, average=None, zero_division=0),
        "recall": reference.recall_score(labels, said, average="macro", zero_division=0),
        "loss": entropy,
        "perplexity": np.exp(entropy),
    }
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_regression_agrees_with_scikit_learn_on_every_backend(backend):
    prediction, target = _numbers("float32")
    evaluate = ptml.compile_evaluate(
        Input("p", shape=(None, 2), dtype="float32"), OF_NUMBERS, backend=backend
    )
    found = evaluate.over(_batches(prediction, target))
    squared = reference.mean_squared_error(target.astype("float64"), prediction)
    absolute = reference.mean_absolute_error(target.astype("float64"), prediction)
    expected = {
        "absolute": absolute,
        "squared": squared,
        "root": np.sqrt(squared),
        "R2": reference.r2_score(target.astype("float64"), prediction),
        "loss": absolute,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, err_msg=name)


def test_the_batches_are_of_no_matter():
    prediction, target = _numbers("float64")
    evaluate = ptml.compile_evaluate(Input("p", shape=(None, 2)), OF_NUMBERS)
    at_once, in_batches = evaluate(prediction, target), evaluate(prediction, target, batch_size=7)
    for name, value in at_once.items():
        np.testing.assert_allclose(in_batches[name], value, rtol=1e-12)
    assert at_once["R2"] == pytest.approx(reference.r2_score(target, prediction), rel=1e-12)


def test_the_mean_of_a_scalar_is_weighed_by_its_rows():
    x = Input("x", shape=(None,))
    loss = SquaredError()(x, pt.zeros_like(x))
    evaluate = ptml.compile_evaluate(x, {"loss": loss, "rows": 0 * x.sum() + x.shape[0]})
    found = evaluate.over([(np.array([1.0]),), (np.array([2.0, 3.0, 4.0]),)])
    assert found == {"loss": 30 / 4, "rows": (1 * 1 + 3 * 3) / 4}


def test_ignored_labels_count_nowhere():
    scores = np.array([[2.0, 0.0], [0.0, 1.0], [5.0, 6.0]])
    labels = np.array([0, 0, -100])
    metrics = {
        "accuracy": Accuracy(ignore_label=-100),
        "confusion": ConfusionMatrix(n_classes=2, ignore_label=-100),
        "loss": CrossEntropy(expect_logits=True, ignore_label=-100),
    }
    evaluate = ptml.compile_evaluate(Input("scores", shape=(None, 2)), metrics)
    found = evaluate(scores, labels)
    assert found["accuracy"] == 0.5
    np.testing.assert_array_equal(found["confusion"], [[1, 1], [0, 0]])
    np.testing.assert_allclose(found["loss"], (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0))) / 2)
    nothing = evaluate(scores[2:], labels[2:])
    assert np.isnan(nothing["accuracy"])
    assert nothing["confusion"].sum() == 0


def test_what_is_no_number_is_not_right(backend):
    scores = np.array([[np.nan, 1.0], [2.0, np.nan], [1.0, 0.0]], "float32")
    labels = np.array([0, 0, 0])
    evaluate = ptml.compile_evaluate(
        Input("scores", shape=(None, 2), dtype="float32"), Accuracy(), backend=backend
    )
    assert evaluate(scores, labels) == pytest.approx(1 / 3)
    binary = ptml.compile_evaluate(
        Input("p", shape=(None,), dtype="float32"), BinaryAccuracy(), backend=backend
    )
    assert binary(np.array([np.nan, np.nan, 0.7], "float32"), np.array([0, 1, 1], "float32")) == (
        pytest.approx(1 / 3)
    )


def test_infinite_scores_are_ordered_as_any():
    scores = np.array([[-np.inf, 0.0], [np.inf, 1.0], [-np.inf, -np.inf]])
    evaluate = ptml.compile_evaluate(Input("scores", shape=(None, 2)), Accuracy())
    assert evaluate(scores, np.array([1, 0, 0])) == 1.0


def test_a_label_that_is_no_class_is_an_error_or_not_right(backend):
    evaluate = ptml.compile_evaluate(
        Input("scores", shape=(None, 2), dtype="float32"), Accuracy(), backend=backend
    )
    scores, labels = np.array([[0.0, -1.0], [1.0, 0.0]], "float32"), np.array([7, 0])
    if backend in ("jax", "mlx", "pytorch"):
        assert evaluate(scores, labels) == 0.5
    else:
        with pytest.raises(ValueError, match="Accuracy: label 7 is not one of the 2 classes"):
            evaluate(scores, labels)


def test_constant_targets_have_an_r2():
    evaluate = ptml.compile_evaluate(Input("p", shape=(None,)), R2())
    assert evaluate([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert evaluate([1.0, 2.0], [1.0, 1.0]) == 0.0
    assert np.isnan(evaluate([1.0], [1.0]))


def test_targets_far_from_zero_lose_no_variance():
    rng = np.random.default_rng(2)
    target = 1e8 + rng.normal(size=200)
    prediction = target + 0.1 * rng.normal(size=200)
    evaluate = ptml.compile_evaluate(Input("p", shape=(None,)), R2())
    found = evaluate(prediction, target, batch_size=9)
    assert found == pytest.approx(reference.r2_score(target - 1e8, prediction - 1e8), abs=1e-7)


def test_a_perplexity_beyond_all_numbers_is_infinite_without_a_warning():
    assert Perplexity().value((np.array(1e4), np.array(1))) == np.inf


def test_they_are_values():
    assert Accuracy() == Accuracy() != Accuracy(ignore_label=0)
    assert repr(TopKAccuracy(k=3)) == "TopKAccuracy(k=3)"
    assert repr(Average(SquaredError())) == "Average(SquaredError())"


def test_an_evaluation_sees_the_steps_of_a_program_and_its_running_statistics():
    X = Input("X", shape=(None, 2))
    bn = ptml.layers.BatchNorm("bn", n_in=2)
    evaluate = ptml.compile_evaluate(bn(X), SquaredError(), state=ptml.init(bn, seed=0))
    rows = np.array([[1.0, 2.0]])
    # One row has no variance: training would refuse it.
    assert evaluate(rows, rows) == pytest.approx(0.0, abs=1e-9)
    store = evaluate.program.store
    store.set({"bn/running_mean": np.array([1.0, 2.0])})
    assert evaluate(rows, np.zeros((1, 2))) == 0.0
    assert store.state.roles["bn/running_mean"] is Role.STATISTIC


class _NoBuild(Metric):
    pass


@pytest.mark.parametrize(
    ("metrics", "error", "text"),
    [
        ({}, ValueError, "was given no metrics"),
        ({"a": Accuracy}, TypeError, r"a is <class .*Accuracy'>. Write Accuracy\(\)."),
        ({"a": 3}, TypeError, "metrics are values such as Accuracy"),
        (_NoBuild(), TypeError, "_NoBuild defines no build"),
        (ConfusionMatrix(n_classes=3), ValueError, r"is of 3 classes; the prediction has 2 \(shape"),
        (TopKAccuracy(k=2), ValueError, "has 2 classes, and k is 2: every row would be right"),
    ],
)
def test_what_is_no_metric_of_the_prediction_says_so(metrics, error, text):
    with pytest.raises(error, match=text):
        ptml.compile_evaluate(Input("scores", shape=(None, 2)), metrics)


def test_wrong_targets_say_so():
    scores = Input("scores", shape=(None, 2))
    with pytest.raises(TypeError, match=r"labels must be integers; got .*labels.astype\('int64'\)"):
        Accuracy()(scores, pt.vector("y"))
    with pytest.raises(ValueError, match=r"target.argmax\(axis=-1\)"):
        Accuracy()(scores, pt.lmatrix("y"))
    with pytest.raises(ValueError, match=r"prediction has shape \(8, 1\), target \(8,\)"):
        R2()(pt.zeros((8, 1)), pt.zeros((8,)))
    with pytest.raises(TypeError, match="prediction must be floating-point"):
        MeanSquaredError()(pt.lvector("p"), pt.vector("y"))
    for call in (
        lambda: F1(n_classes=2, average="binary"),
        lambda: F1(n_classes=1),
        lambda: TopKAccuracy(k=0),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()


def test_wrong_calls_say_so():
    scores = Input("scores", shape=(None, 2))
    with pytest.raises(TypeError, match="the prediction, a tensor, comes first"):
        ptml.compile_evaluate(Accuracy(), scores)
    evaluate = ptml.compile_evaluate(scores, Accuracy())
    with pytest.raises(ValueError, match="no batch to evaluate"):
        evaluate.over([])
    with pytest.raises(TypeError, match="A batch is a tuple of arrays, 2 of them here; got ndarray"):
        evaluate.over([np.zeros((3, 2))])
    with pytest.raises(ValueError, match="leave target= out"):
        ptml.compile_evaluate(scores, {"sum": scores.sum()}, target=pt.lvector("y"))
