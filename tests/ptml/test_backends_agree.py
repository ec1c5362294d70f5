"""From one seed, every backend makes the same state, draws the same masks, and trains alike."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from sklearn.datasets import load_digits

import ptml
from ptml.activations import ReLU
from ptml.bits import numbers
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, chain, clip_by_global_norm, compile_train, cosine_schedule
from ptml_state import Role, State

HIDDEN, CLASSES, ROWS = 16, 10, 64
KEEP, RATE, HORIZON, BOUND = 0.8, 1e-2, 40, 1.0


class Run(NamedTuple):
    """What a training run leaves behind."""

    first: State
    losses: np.ndarray
    masks: np.ndarray
    last: State
    cells: dict[str, str]
    program: ptml.Program


def _batches(steps, dtype):
    """Give the first batches of the digits, in the rows' own order, again and again."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(dtype)
    for step in range(steps):
        rows = np.arange(step * ROWS, (step + 1) * ROWS) % len(pixels)
        yield pixels[rows], labels[rows]


@functools.cache
def trained(backend, floatX, steps):
    """Train the digits' network, once for all tests of this file."""
    with pytensor.config.change_flags(floatX=floatX):
        hidden = Sequential(
            Linear("fc1", n_in=64, n_out=HIDDEN), BatchNorm("bn", n_in=HIDDEN), Dropout("drop", p=1 - KEEP)
        )
        # What is dropped is 0, and what batch norm makes of pixels is not: the mask can be read off.
        noisy = hidden(Input("X", (None, 64)))
        logits = Linear("fc2", n_in=HIDDEN, n_out=CLASSES)(ReLU()(noisy))
        loss, _ = supervised_loss(logits, CrossEntropy(expect_onehot_labels=False, expect_logits=True))
        rule = chain(clip_by_global_norm(BOUND), adam(cosine_schedule(RATE, HORIZON)))
        program = compile_train(loss, rule, extra_outputs=[pt.neq(noisy, 0)], seed=7, backend=backend)
    first = program.state
    results = [program(*batch) for batch in _batches(steps, floatX)]
    losses, masks = zip(*results, strict=True)
    # Where cells are touched by nobody but the backend: reading the state would cast them.
    cells = {p.address: p.slot for p in program._placed}
    raw = {address: program.store._cells[slot].get_value(borrow=True) for address, slot in cells.items()}
    dtypes = {address: str(value.dtype).removeprefix("mlx.core.") for address, value in raw.items()}
    return Run(first, np.array(losses), np.array(masks), program.state, dtypes, program)


class Digits:
    """The same network and rule in NumPy, from the definitions; float64 throughout."""

    def __init__(self, state):
        self.p = {a: np.array(state[a]) for a in ("fc1/W", "fc1/b", "bn/scale", "bn/b", "fc2/W", "fc2/b")}
        self.first = {a: np.zeros_like(value) for a, value in self.p.items()}
        self.second = {a: np.zeros_like(value) for a, value in self.p.items()}
        self.mean, self.var = np.zeros(HIDDEN), np.ones(HIDDEN)
        self.key, self.count = [int(word) for word in state["drop/key"]], 0

    def mask(self):
        words = numbers(self.key, 0, ROWS * HIDDEN, "uint32").reshape(ROWS, HIDDEN)
        return words < round(KEEP * 2**32)

    def step(self, X, labels):
        p, n = self.p, len(X)
        A = X @ p["fc1/W"] + p["fc1/b"]
        mean, var = A.mean(0), A.var(0)
        spread = np.sqrt(var + 1e-5)
        centred = (A - mean) / spread
        mask = self.mask()
        H = np.maximum((centred * p["bn/scale"] + p["bn/b"]) * mask / KEEP, 0)
        logits = H @ p["fc2/W"] + p["fc2/b"]
        shifted = logits - logits.max(1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        loss = -log_p[np.arange(n), labels].mean()

        g_logits = (np.exp(log_p) - np.eye(CLASSES)[labels]) / n
        g_norm = (g_logits @ p["fc2/W"].T) * (H > 0) * mask / KEEP
        g_centred = g_norm * p["bn/scale"]
        g_A = (g_centred - g_centred.mean(0) - centred * (g_centred * centred).mean(0)) / spread
        gradients = {
            "fc1/W": X.T @ g_A,
            "fc1/b": g_A.sum(0),
            "bn/scale": (g_norm * centred).sum(0),
            "bn/b": g_norm.sum(0),
            "fc2/W": H.T @ g_logits,
            "fc2/b": g_logits.sum(0),
        }
        self.descend(gradients)
        self.mean, self.var = 0.9 * self.mean + 0.1 * mean, 0.9 * self.var + 0.1 * var
        self.key[2] += 1
        return loss, mask

    def descend(self, gradients):
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        rate = RATE * (1 + np.cos(np.pi * min(self.count, HORIZON) / HORIZON)) / 2
        self.count += 1
        for a, g in gradients.items():
            g = g * min(1, BOUND / norm)
            self.first[a] = 0.9 * self.first[a] + 0.1 * g
            self.second[a] = 0.999 * self.second[a] + 0.001 * g**2
            m, v = self.first[a] / (1 - 0.9**self.count), self.second[a] / (1 - 0.999**self.count)
            self.p[a] = self.p[a] - rate * m / (np.sqrt(v) + 1e-8)
        return norm

    @property
    def state(self):
        return {
            **self.p,
            "bn/running_mean": self.mean,
            "bn/running_var": self.var,
            "drop/key": np.array(self.key, "uint32"),
            "adam/step_count": np.int64(self.count),
            **{f"adam/first_moment/{a}": value for a, value in self.first.items()},
            **{f"adam/second_moment/{a}": value for a, value in self.second.items()},
        }


@functools.cache
def by_hand(steps):
    """Train the NumPy network from the state that a program starts from."""
    network = Digits(trained("c", "float64", steps).first)
    losses, masks = zip(*[network.step(*batch) for batch in _batches(steps, "float64")], strict=True)
    return np.array(losses), np.array(masks), network.state


@pytest.mark.backends("c", "jax", "mlx")
def test_one_seed_makes_the_same_first_state_bit_for_bit(backend):
    first = trained(backend, "float32", 10).first
    assert first == trained("numba", "float32", 10).first
    assert set(first.roles.values()) == set(Role)


@pytest.mark.backends("c", "jax", "mlx")
def test_one_seed_draws_the_same_masks_bit_for_bit(backend):
    masks = trained(backend, "float32", 10).masks
    np.testing.assert_array_equal(masks, trained("numba", "float32", 10).masks)
    assert abs(masks.mean() - KEEP) < 4 * np.sqrt(KEEP * (1 - KEEP) / masks.size)
    assert not (masks[1:] == masks[:-1]).all(axis=(1, 2)).any()


@pytest.mark.backends("c", "jax", "mlx")
def test_the_losses_of_the_first_ten_steps_agree_with_numbas(backend):
    losses = trained(backend, "float32", 10).losses
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, trained("numba", "float32", 10).losses, rtol=1e-4)


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_the_losses_of_the_first_ten_steps_agree_with_numpys(backend):
    run = trained(backend, "float32", 10)
    losses, masks, _ = by_hand_in_float32_state(run.first)
    np.testing.assert_array_equal(run.masks, masks)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-4)


def by_hand_in_float32_state(first):
    """Train the NumPy network, which computes in float64, from a float32 state."""
    network = Digits(State(first).map(lambda v: v.astype("float64") if v.dtype == "float32" else v))
    losses, masks = zip(*[network.step(*batch) for batch in _batches(10, "float32")], strict=True)
    return np.array(losses), np.array(masks), network.state


@pytest.mark.backends("numba", "c", "jax")
def test_fifty_steps_in_float64_agree_with_numpy(backend):
    run, (losses, masks, last) = trained(backend, "float64", 50), by_hand(50)
    np.testing.assert_array_equal(run.masks, masks)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-8)
    # Past the horizon of the schedule the rate is 0 and nothing moves but moments and statistics.
    assert run.losses[-1] < 0.5 * run.losses[0]
    assert set(run.last) == set(last)
    for address, value in last.items():
        # The batch norm takes the gradient of the bias before it away, but for the rounding.
        np.testing.assert_allclose(run.last[address], value, rtol=1e-8, atol=1e-10, err_msg=address)


@pytest.mark.parametrize("floatX", ["float32", "float64"])
@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_every_cell_keeps_its_declared_dtype(backend, floatX):
    if (backend, floatX) == ("mlx", "float64"):
        pytest.skip("MLX has no float64 on Metal, and ptml refuses it")
    run = trained(backend, floatX, 10 if floatX == "float32" else 50)
    declared = {address: str(value.dtype) for address, value in run.first.items()}
    assert run.cells == declared
    assert {address: str(value.dtype) for address, value in run.last.items()} == declared
    assert {address: value.shape for address, value in run.last.items()} == {
        address: value.shape for address, value in run.first.items()
    }


@pytest.mark.parametrize("floatX", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["jax"])
def test_jax_compiles_a_step_once(backend, floatX):
    pytest.importorskip("jax")
    program = trained(backend, floatX, 10 if floatX == "float32" else 50).program
    assert program.function.vm.jit_fn._cache_size() == 1
