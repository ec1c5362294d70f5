"""The estimators: scikit-learn's own checks, and that networks and rules take part as values."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from ptml.activations import ReLU, Tanh
from ptml.layers import BatchNorm, Dropout, Linear, Sequential
from ptml.loss import AbsoluteError, CrossEntropy
from ptml.optim import adam, sgd
from ptml.sklearn import Mlp, NetworkClassifier, NetworkRegressor
from ptml_state import Role

IRIS = load_iris(return_X_y=True)


# Skipped are two of these: what needs SciPy's array API, and what needs pandas, where that is not installed.
@parametrize_with_checks([NetworkClassifier(random_state=0), NetworkRegressor(random_state=0)])
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


def _named():
    return Sequential(
        Linear("fc1", n_in=4, n_out=8), BatchNorm("bn", n_in=8), ReLU(), Dropout("drop", p=0.1),
        Linear("fc2", n_in=8, n_out=3),
    )  # fmt: skip


def test_a_classifier_learns_and_gives_probabilities():
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = NetworkClassifier(_named(), rule=adam(1e-2), epochs=40, random_state=0).fit(X, names)
    assert model.score(X, names) > 0.95
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(X)).all()
    assert model.history_["loss"][-1] < model.history_["loss"][0]
    assert list(model.state_.roles.values()).count(Role.OPTIMIZER) == 0
    assert "standardize/mean" in model.state_


def test_one_seed_is_one_result_and_a_pickle_predicts_the_same():
    X, y = IRIS
    first, second = (NetworkClassifier(_named(), epochs=3, random_state=7).fit(X, y) for _ in range(2))
    assert first.state_ == second.state_
    again = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(again.predict_proba(X), first.predict_proba(X))


def test_a_clone_is_unfitted_and_equal():
    model = NetworkClassifier(_named(), rule=sgd(0.1)).fit(*IRIS)
    copy = clone(model)
    assert not hasattr(copy, "network_")
    assert (copy.network, copy.rule) == (model.network, model.rule)


def test_fields_of_layers_and_rules_are_parameters():
    model = NetworkClassifier(_named(), rule=adam(1e-3))
    found = model.get_params()
    assert found["rule__learning_rate"] == 1e-3
    assert found["network__drop__p"] == 0.1
    model.set_params(rule__learning_rate=0.5, network__drop__p=0.3, epochs=7)
    assert model.rule == adam(0.5)
    assert model.network[3] == Dropout("drop", p=0.3)
    assert model.epochs == 7
    spec = NetworkClassifier(Mlp()).set_params(network__hidden=(3,), network__activation=Tanh())
    assert spec.network == Mlp(hidden=(3,), activation=Tanh())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rule__lr", ""),
        ("network__dorp__p", "'network__drop__p'"),
        ("network__drop__q", "'network__drop__p'"),
    ],
)
def test_a_parameter_that_there_is_not_says_what_there_is(name, hint):
    model = NetworkClassifier(_named(), rule=adam(1e-3))
    text = f"NetworkClassifier has no parameter '{name}'." + (f" Did you mean {hint}" if hint else "")
    with pytest.raises(ValueError, match=text):
        model.set_params(**{name: 0.5})


def test_a_search_tries_fields_in_a_pipeline():
    X, y = IRIS
    model = make_pipeline(
        PolynomialFeatures(2), NetworkClassifier(Mlp(hidden=(8,)), rule=adam(1e-2), epochs=15, random_state=0)
    )
    search = GridSearchCV(
        model,
        {
            "networkclassifier__rule__learning_rate": [0.0, 1e-2],
            "networkclassifier__network__hidden": [(), (8,)],
            "networkclassifier__batch_size": [8],
        },
        cv=2,
    ).fit(X, y)
    assert search.best_params_["networkclassifier__rule__learning_rate"] == 1e-2
    assert search.best_score_ > 0.9


def test_a_regressor_predicts_in_the_unit_of_its_targets():
    X, y = load_diabetes(return_X_y=True)
    model = NetworkRegressor(Mlp(hidden=(16,)), rule=adam(3e-3), epochs=30, random_state=0)
    assert cross_val_score(model, X, 1e6 + 1e3 * y, cv=3).mean() > 0.35
    both = np.stack([y, -y], axis=1)
    model.fit(X, both)
    assert model.predict(X).shape == both.shape
    absolute = NetworkRegressor(
        Mlp(hidden=()), loss=AbsoluteError(), rule=adam(1e-2), epochs=30, random_state=0
    )
    assert absolute.fit(X, y).score(X, y) > 0.4


def test_folds_of_groups_keep_rows_that_belong_together_on_one_side():
    # Five rows of each of 40 things; the target is a number that only the thing decides.
    rng = np.random.default_rng(0)
    things = rng.normal(size=(40, 3))
    X = np.repeat(things, 5, axis=0) + 1e-3 * rng.normal(size=(200, 3))
    y = np.repeat(rng.normal(size=40), 5)
    groups = np.repeat(np.arange(40), 5)
    model = NetworkRegressor(Mlp(hidden=(64,)), rule=adam(1e-2), epochs=60, random_state=0)
    by_group = cross_val_score(model, X, y, groups=groups, cv=GroupKFold(4))
    by_row = cross_val_score(model, X, y, cv=KFold(4, shuffle=True, random_state=0))
    assert by_group.mean() < 0 < by_row.mean()


def test_early_stopping_holds_rows_out_and_goes_back():
    X, y = IRIS
    model = NetworkClassifier(
        rule=adam(1e-2), epochs=200, early_stopping=True, validation_fraction=0.3, patience=5, random_state=0
    ).fit(X, y)
    assert model.n_iter_ < 200
    assert model.history_.stopped == "no improvement"
    assert model.history_.best_epoch == model.n_iter_ - 5
    assert model.history_.best_state["output/W"].tolist() == model.state_["output/W"].tolist()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"network": Linear("fc", n_in=4, n_out=2)}, ValueError, r"gives 2 numbers .* takes 3\. Give a func"),
        ({"network": Linear("fc", n_in=5, n_out=3)}, ValueError, "fc .Linear. takes"),
        ({"network": 3}, TypeError, "network must be a layer, such as a Sequential"),
        ({"network": Linear}, TypeError, "network must be a layer"),
        ({"loss": CrossEntropy()}, ValueError, r"CrossEntropy\(expect_logits=True\)"),
        ({"epochs": 0}, ValueError, "epochs is a positive whole number"),
    ],
)
def test_what_cannot_be_trained_says_so(options, error, text):
    with pytest.raises(error, match=text):
        NetworkClassifier(**options).fit(*IRIS)


def test_one_class_is_none():
    with pytest.raises(ValueError, match="needs two classes or more; got 1 class"):
        NetworkClassifier().fit(np.ones((3, 2)), ["a", "a", "a"])


def test_widths_are_positive_numbers():
    with pytest.raises(ValueError, match="hidden must be a tuple of positive integers"):
        Mlp(hidden=64)
