"""Gradients that fade over a long sequence end in 0, not in denormal numbers, which are slow."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

import ptml
from ptml.layers import GRU, LSTM, RNN, Input

pytestmark = pytest.mark.usefixtures("float32")


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN], ids=lambda kind: kind.__name__)
def test_no_gradient_of_a_long_sequence_is_denormal(kind):
    X = Input("X", (None, None, 2))
    layer = kind("layer", n_in=2, n_hidden=3)
    state = ptml.init(layer, seed=0)
    # Gradients are halved by every step, or more.
    state = state.replace({"layer/W_hh": 0.3 * np.asarray(state["layer/W_hh"])})
    by_X = pytensor.grad(layer(X)[:, -1].sum(), X)
    found = ptml.function([X], by_X, state=state)(
        np.random.default_rng(0).normal(size=(4, 400, 2)).astype("float32")
    )
    sizes = np.abs(found)
    assert sizes[:, -1].min() > 0
    assert sizes[:, 0].max() == 0
    assert not np.any((sizes > 0) & (sizes < np.finfo("float32").tiny))
