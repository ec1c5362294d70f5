"""The estimators: a classifier and a regressor, each around a network that is a value."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytensor
from pytensor.tensor.variable import TensorVariable
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ptml.compile.function import compile_predict
from ptml.compile.program import Program
from ptml.data import DataLoader
from ptml.layer import Layer
from ptml.layers import Input, Sequential
from ptml.layers.scaling import Standardize
from ptml.loss import CrossEntropy, SquaredError
from ptml.loss.base import Loss
from ptml.metrics import R2, Accuracy, Metric
from ptml.ops.softmax import Softmax
from ptml.optim import adam
from ptml.optim.train import compile_train
from ptml.sklearn.networks import network_for
from ptml.sklearn.parameters import WithFields
from ptml.training import EarlyStopping, compile_evaluate, fit
from ptml_state import Leaf, Role, State

__all__ = ["NetworkClassifier", "NetworkRegressor"]

WRONG_OUTPUT = (
    "The network gives {given} numbers for each row, and {what} takes {wanted}. Give a function of the "
    "numbers of inputs and outputs, such as Mlp(hidden=(64,)), to have it sized."
)
NOT_LOGITS = "loss must take logits: CrossEntropy(expect_logits=True); got {given!r}."
ONE_CLASS = "NetworkClassifier needs two classes or more; got 1 class in y, {given!r}."


#: What predicts, of each estimator that has predicted. It is compiled code and live memory, which no copy or
#: pickle of an estimator has a use for.
_predictors: weakref.WeakKeyDictionary[Any, Program] = weakref.WeakKeyDictionary()


class _NetworkEstimator(WithFields):
    """What both estimators share: data in, a network trained, rows out."""

    def __init__(
        self,
        network: Layer | Callable[[int, int], Layer] | None = None,
        *,
        rule: Any = None,
        loss: Loss | None = None,
        epochs: int = 100,
        batch_size: int = 32,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: int | np.random.RandomState | None = None,
        backend: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.network = network
        self.rule = rule
        self.loss = loss
        self.epochs = epochs
        self.batch_size = batch_size
        self.standardize = standardize
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.backend = backend
        self.verbose = verbose

    def _train(self, X: np.ndarray, y: np.ndarray, n_out: int, loss: Loss, metric: Metric) -> None:
        """Train a network on rows, and keep it with its state and history."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network = network_for(self.network, X.shape[1], n_out)
        held_out = None
        if self.early_stopping:
            stratify = y if isinstance(self, NetworkClassifier) else None
            X, X_valid, y, y_valid = train_test_split(
                X, y, test_size=self.validation_fraction, random_state=seed, stratify=stratify
            )
            held_out = (X_valid, y_valid)
        start: State | None = None
        if self.standardize:
            scaler = Standardize("standardize", n_in=X.shape[1])
            network, start = Sequential(scaler, network), scaler.fit(X)
        rows, prediction = self._called(network, n_out)
        target = loss.target_for(prediction, "y")
        step = compile_train(
            loss(prediction, target),
            adam(1e-3) if self.rule is None else self.rule,
            inputs=[rows, target],
            state=start,
            seed=seed,
            backend=self.backend,
        )
        evaluate = compile_evaluate(
            prediction,
            {"loss": loss, "score": metric},
            target=target,
            inputs=[rows, target],
            state=step,
            backend=self.backend,
        )
        self.history_ = fit(
            step,
            DataLoader(X, y, batch_size=min(self.batch_size, len(X)), shuffle=True, seed=seed),
            epochs=self.epochs,
            validation=held_out,
            evaluate=None if held_out is None else evaluate,
            stop=None if held_out is None else EarlyStopping(patience=self.patience),
            progress=None if self.verbose else False,
        )
        self.network_ = network
        self.state_ = step.state.drop(_is_of_training)
        self.n_outputs_ = n_out
        self.n_iter_ = len(self.history_)
        _predictors.pop(self, None)

    def _called(self, network: Layer, n_out: int) -> tuple[TensorVariable, TensorVariable]:
        rows = Input("X", shape=(None, self.n_features_in_))
        prediction = network(rows)
        given = prediction.type.shape[-1] if prediction.type.ndim == 2 else None
        if given != n_out:
            shown = given if prediction.type.ndim == 2 else f"{prediction.type.ndim} axes of"
            raise ValueError(WRONG_OUTPUT.format(given=shown, what=type(self).__name__, wanted=n_out))
        return rows, prediction

    def _computed(self, X: Any) -> np.ndarray:
        """Give what the trained network computes of rows."""
        check_is_fitted(self, "network_")
        X = validate_data(self, X, dtype=pytensor.config.floatX, reset=False)
        if self not in _predictors:
            rows, prediction = self._called(self.network_, self.n_outputs_)
            _predictors[self] = compile_predict(
                self._finished(prediction), inputs=[rows], state=self.state_, backend=self.backend
            )
        return _predictors[self](X)

    def _finished(self, prediction: TensorVariable) -> TensorVariable:
        return prediction


def _is_of_training(leaf: Leaf) -> bool:
    return leaf.role in (Role.OPTIMIZER, Role.CLOCK)


class NetworkClassifier(ClassifierMixin, _NetworkEstimator):
    """A network that predicts classes, as a scikit-learn classifier.

    It takes part in pipelines, cross validation and searches. The network is a value: cloning copies it, and
    its layers' fields, and the rule's, are parameters (``network__hidden``, ``rule__learning_rate``).

    Parameters
    ----------
    network : Layer or function of (n_in, n_out), optional
        What gives one logit for each class. A function makes one sized from the data; ``Mlp()`` unless given.
    rule : Transform, optional
        ``adam(1e-3)`` unless given.
    loss : Loss, optional
        ``CrossEntropy(expect_logits=True)`` unless given; class weights and smoothing are set here.
    epochs : int, default 100
    batch_size : int, default 32
    standardize : bool, default True
        Whether features are standardized first, by the training rows.
    early_stopping : bool, default False
        Whether to hold out rows, to stop when their loss has not improved for `patience` epochs, and to go
        back to the best state.
    validation_fraction : float, default 0.1
    patience : int, default 10
    random_state : int, RandomState or None
        Decides first values, orders of rows, dropout and what is held out.
    backend : {"numba", "c", "jax", "mlx", "pytorch"}, optional
    verbose : bool, default False
        Whether progress is shown.

    Attributes
    ----------
    classes_ : array
    network_ : Layer
        The one that was trained, with the scaler ahead of it.
    state_ : State
        Its parameters and statistics.
    history_ : History
    n_iter_ : int
        Epochs.

    Notes
    -----
    What it computes in is PyTensor's ``floatX``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from ptml.optim import adam
    >>> from ptml.sklearn import Mlp, NetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NetworkClassifier(Mlp(hidden=(16,)), rule=adam(1e-2), epochs=40, random_state=0)
    >>> bool(cross_val_score(model, X, y, cv=3).mean() > 0.9)
    True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows and their classes.

        Parameters
        ----------
        X : array-like, ``(rows, features)``
        y : array-like, ``(rows,)``
            Labels of any kind.
        """
        X, y = validate_data(self, X, y, dtype=pytensor.config.floatX)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(ONE_CLASS.format(given=self.classes_[0]))
        loss = CrossEntropy(expect_logits=True) if self.loss is None else self.loss
        if not getattr(loss, "expect_logits", False) or getattr(loss, "expect_onehot_labels", False):
            raise ValueError(NOT_LOGITS.format(given=loss))
        self._train(X, labels.astype("int64"), len(self.classes_), loss, Accuracy())
        return self

    def _finished(self, prediction: TensorVariable) -> TensorVariable:
        return Softmax()(prediction)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Give the probability of each class, ``(rows, classes)``.

        Parameters
        ----------
        X : array-like, ``(rows, features)``
        """
        return self._computed(X)

    def predict(self, X: Any) -> np.ndarray:
        """Give the most probable class of each row.

        Parameters
        ----------
        X : array-like, ``(rows, features)``
        """
        probabilities = self._computed(X)
        return self.classes_[probabilities.argmax(axis=1)]


class NetworkRegressor(RegressorMixin, _NetworkEstimator):
    """A network that predicts numbers, as a scikit-learn regressor.

    Parameters
    ----------
    network : Layer or function of (n_in, n_out), optional
        What gives one number for each output. A function makes one sized from the data; ``Mlp()`` unless
        given.
    rule, epochs, batch_size, early_stopping, validation_fraction, patience, random_state, backend, verbose
        As for :class:`NetworkClassifier`.
    loss : Loss, optional
        ``SquaredError()`` unless given.
    standardize : bool, default True
        Whether features, and targets, are standardized first, by the training rows. Predictions are in the
        unit of the targets.

    Attributes
    ----------
    network_, state_, history_, n_iter_
        As for :class:`NetworkClassifier`; the network predicts standardized targets.

    Examples
    --------
    >>> import numpy as np
    >>> from ptml.sklearn import NetworkRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = 1000 + X[:, 0] * X[:, 1]
    >>> model = NetworkRegressor(epochs=60, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows and their targets.

        Parameters
        ----------
        X : array-like, ``(rows, features)``
        y : array-like, ``(rows,)`` or ``(rows, outputs)``
        """
        floatx = pytensor.config.floatX
        X, y = validate_data(self, X, y, dtype=floatx, multi_output=True, y_numeric=True)
        self._is_flat = y.ndim == 1
        y = y.reshape(len(y), -1).astype("float64")
        self.offset_, self.scale_ = np.zeros(y.shape[1]), np.ones(y.shape[1])
        if self.standardize:
            scaler = Standardize("target", n_in=y.shape[1]).fit(y)
            self.offset_, self.scale_ = (np.asarray(scaler[f"target/{name}"]) for name in ("mean", "std"))
        scaled = ((y - self.offset_) / self.scale_).astype(floatx)
        loss = SquaredError() if self.loss is None else self.loss
        self._train(X, scaled, y.shape[1], loss, R2())
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Give the predicted number, or numbers, of each row.

        Parameters
        ----------
        X : array-like, ``(rows, features)``
        """
        found = self._computed(X) * self.scale_ + self.offset_
        return found[:, 0] if self._is_flat else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
