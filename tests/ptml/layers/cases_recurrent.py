"""The lines of recurrent layers in the conformance table, with references written step by step."""

from __future__ import annotations

import numpy as np

from ptml.activations import ReLU, Softplus
from ptml.bits import numbers
from ptml.layers import (
    GRU,
    LSTM,
    RNN,
    Bidirectional,
    ElmanCell,
    GRUCell,
    LastStep,
    Recurrent,
    Sequential,
)

WEIGHTS = ("W_ih", "W_hh", "b")


def leaves(name, *more):
    return tuple(f"{name}/{leaf}" for leaf in (*WEIGHTS, *more))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def walked(step, x, *state, reverse=False):
    """Give the first part of the state after each step, where its input is."""
    outputs = [None] * x.shape[1]
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        state = step(x[:, t], *state)
        outputs[t] = state[0]
    return np.stack(outputs, axis=1) if outputs else np.zeros((len(x), 0, state[0].shape[-1]))


def zeros(x, n):
    return np.zeros((len(x), n))


def elman(p, name, x, activation=np.tanh, reverse=False):
    W_ih, W_hh, b = (p[f"{name}/{leaf}"] for leaf in WEIGHTS)

    def step(x_t, h):
        return (activation(x_t @ W_ih + h @ W_hh + b),)

    return walked(step, x, zeros(x, len(W_hh)), reverse=reverse)


def gru(p, name, x, reverse=False):
    W_ih, W_hh, b, c = (p[f"{name}/{leaf}"] for leaf in (*WEIGHTS, "c"))

    def step(x_t, h):
        r_x, z_x, n_x = np.split(x_t @ W_ih + b, 3, axis=-1)
        r_h, z_h, n_h = np.split(h @ W_hh, 3, axis=-1)
        r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
        n = np.tanh(n_x + r * (n_h + c))
        return ((1 - z) * n + z * h,)

    return walked(step, x, zeros(x, len(W_hh)), reverse=reverse)


def lstm(p, name, x, reverse=False):
    W_ih, W_hh, b = (p[f"{name}/{leaf}"] for leaf in WEIGHTS)
    peepholes = [p.get(f"{name}/{leaf}", 0.0) for leaf in ("W_ci", "W_cf", "W_co")]
    W_hr = p.get(f"{name}/W_hr")

    def step(x_t, h, c):
        i, f, g, o = np.split(x_t @ W_ih + h @ W_hh + b, 4, axis=-1)
        i, f = sigmoid(i + peepholes[0] * c), sigmoid(f + peepholes[1] * c)
        c = f * c + i * np.tanh(g)
        h = sigmoid(o + peepholes[2] * c) * np.tanh(c)
        return h if W_hr is None else h @ W_hr, c

    return walked(step, x, zeros(x, len(W_hh)), zeros(x, W_ih.shape[1] // 4), reverse=reverse)


def kept(key, p, shape):
    words = numbers([int(key[0]), int(key[1]), 0, 0], 0, int(np.prod(shape)), "uint32")
    return (words < (1 - p) * 2**32).reshape(shape) / (1 - p)


def stacked(p, x, dropped):
    y = lstm(p, "stack/layer0", x)
    mask = kept(p["stack/dropout0/key"], 0.25, (len(x), 1, y.shape[-1])) if dropped else 1.0
    return lstm(p, "stack/layer1", y * mask)


def dropped_state(p, name, x, dropped):
    W_ih, W_hh, b = (p[f"{name}/{leaf}"] for leaf in WEIGHTS)
    n = len(W_hh)
    mask = kept(p[f"{name}/recurrent_dropout/key"], 0.25, (len(x), n)) if dropped else 1.0

    def step(x_t, h):
        return (np.tanh(x_t @ W_ih + (h * mask) @ W_hh + b),)

    return walked(step, x, zeros(x, n))


def softplus(x):
    return np.log1p(np.exp(x))


CASES = {
    "rnn_relu": {
        "layer": lambda: RNN("relu", n_in=2, n_hidden=3, activation=ReLU()),
        "shape": (2, 3, 2),
        "reference": lambda p, x: elman(p, "relu", x, lambda a: np.where(a.real > 0, a, 0)),
        "leaves": leaves("relu"),
    },
    "rnn_dropping_its_state": {
        "layer": lambda: RNN("dropping", n_in=2, n_hidden=4, recurrent_dropout=0.25),
        "shape": (2, 3, 2),
        "reference": lambda p, x: dropped_state(p, "dropping", x, True),
        "predicted": lambda p, x: dropped_state(p, "dropping", x, False),
        "leaves": (*leaves("dropping"), "dropping/recurrent_dropout/key"),
    },
    "gru": {
        "layer": lambda: GRU("gru", n_in=2, n_hidden=3),
        "shape": (3, 4, 2),
        "reference": lambda p, x: gru(p, "gru", x),
        "leaves": leaves("gru", "c"),
    },
    "lstm": {
        "layer": lambda: LSTM("lstm", n_in=2, n_hidden=3),
        "shape": (3, 4, 2),
        "reference": lambda p, x: lstm(p, "lstm", x),
        "leaves": leaves("lstm"),
    },
    "lstm_with_peepholes_and_projection": {
        "layer": lambda: LSTM("peeping", n_in=2, n_hidden=3, peephole=True, projection=2, reverse=True),
        "shape": (2, 3, 2),
        "reference": lambda p, x: lstm(p, "peeping", x, reverse=True),
        "leaves": leaves("peeping", "W_ci", "W_cf", "W_co", "W_hr"),
    },
    "lstm_stacked": {
        "layer": lambda: LSTM("stack", n_in=2, n_hidden=3, n_layers=2, dropout=0.25, variational=True),
        "shape": (2, 3, 2),
        "reference": lambda p, x: stacked(p, x, True),
        "predicted": lambda p, x: stacked(p, x, False),
        "leaves": (*leaves("stack/layer0"), *leaves("stack/layer1"), "stack/dropout0/key"),
    },
    "bidirectional": {
        "layer": lambda: Bidirectional(
            RNN("there", n_in=2, n_hidden=3), RNN("back", n_in=2, n_hidden=2), name="both"
        ),
        "shape": (2, 3, 2),
        "reference": lambda p, x: np.concatenate(
            [elman(p, "there", x), elman(p, "back", x, reverse=True)], axis=-1
        ),
        "leaves": (*leaves("there"), *leaves("back")),
    },
    "recurrent": {
        "layer": lambda: Recurrent(GRUCell("cell", n_in=2, n_hidden=3), name="loop", reverse=True),
        "shape": (2, 3, 2),
        "reference": lambda p, x: gru(p, "cell", x, reverse=True),
        "leaves": leaves("cell", "c"),
    },
    "last_step": {
        "layer": lambda: Sequential(
            Recurrent(ElmanCell("last", n_in=2, n_hidden=3, activation=Softplus())), LastStep()
        ),
        "shape": (2, 3, 2),
        "reference": lambda p, x: elman(p, "last", x, softplus)[:, -1],
        "leaves": leaves("last"),
    },
}
