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
    # What the backend left there: a state that is read has the declared dtypes in any case.
    raw = {slot.address: cell.get_value(borrow=True) for slot, cell in program.store._cells.items()}
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


def by_hand(run, steps, floatX):
    """Train the NumPy network from the state that a run starts from."""
    network = Digits({a: v.astype("float64") if v.dtype == floatX else v for a, v in run.first.items()})
    losses, masks = zip(*[network.step(*batch) for batch in _batches(steps, floatX)], strict=True)
    return np.array(losses), np.array(masks), network.state


@pytest.mark.backends("c", "jax", "mlx")
def test_one_seed_makes_the_same_first_state_bit_for_bit(backend):
    first = trained(backend, "float32", 10).first
    assert first == trained("numba", "float32", 10).first
    assert set(first.roles.values()) == set(Role) - {Role.CACHE}


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
def test_ten_steps_in_float32_agree_with_numpy(backend):
    run = trained(backend, "float32", 10)
    losses, masks, _ = by_hand(run, 10, "float32")
    np.testing.assert_array_equal(run.masks, masks)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-4)


@pytest.mark.backends("numba", "c", "jax")
def test_fifty_steps_in_float64_agree_with_numpy(backend):
    run = trained(backend, "float64", 50)
    losses, masks, last = by_hand(run, 50, "float64")
    np.testing.assert_array_equal(run.masks, masks)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-8)
    assert run.losses[-1] < 0.5 * run.losses[0]
    assert set(run.last) == set(last)
    for address, value in last.items():
        # Batch norm takes away the gradient of the bias before it; Adam makes a step of what rounding leaves.
        atol = 1e-8 if address == "fc1/b" else 1e-12
        np.testing.assert_allclose(run.last[address], value, rtol=1e-8, atol=atol, err_msg=address)


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
    assert program.function.vm._donated._cache_size() == 1


@functools.cache
def noisy(backend):
    """Apply one dropout at five places, and in a second graph; two programs over one store."""
    X = Input("X", (None, None), dtype="float32")
    drop = Dropout("drop", p=0.25)
    five = ptml.function([X], [drop(X) for _ in range(5)], seed=3, backend=backend)
    one = ptml.function([X], drop(X + 1), state=five, backend=backend)
    return five, one


def mask_of(leaf, call, number, shape):
    """Draw a mask as the generator's documentation says: key, calls so far, number of the draw."""
    words = numbers([int(leaf[0]), int(leaf[1]), call, 0], number, int(np.prod(shape)), "uint32")
    return (words < 0.75 * 2**32).reshape(shape)


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_one_dropout_at_five_places_draws_five_masks_and_the_stream_goes_on_in_any_program(backend):
    five, one = noisy(backend)
    five.store.load(ptml.init(Dropout("drop"), seed=11))
    leaf, shape = five.state["drop/key"], (6, 21)
    x = np.ones(shape, "float32")
    drawn = [five(x), [one(x)], five(x), [one(x)], [one(x)]]
    masks = [[result != 0 for result in results] for results in drawn]
    for call, results in enumerate(masks):
        for number, mask in enumerate(results):
            np.testing.assert_array_equal(mask, mask_of(leaf, call, number, shape))
    assert len({mask.tobytes() for results in masks for mask in results}) == 13
    assert five.state["drop/key"].tolist() == one.state["drop/key"].tolist() == [leaf[0], leaf[1], 5, 0]


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_the_mean_of_a_million_elements_is_kept(backend):
    _, one = noisy(backend)
    y = one(np.zeros((1000, 1000), "float32"))
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert abs(y.mean(dtype="float64") - 1) < 0.005


@pytest.mark.backends("numba", "jax", "mlx")
def test_the_stream_goes_on_where_it_was_in_a_program_of_another_backend(backend):
    X = Input("X", (None, None), dtype="float32")
    Y = Dropout("drop", p=0.25)(X)
    first = ptml.function([X], Y, seed=3, backend="c")
    second = ptml.function([X], Y, state=first, backend=backend)
    leaf, x = first.state["drop/key"], np.ones((3, 40), "float32")
    for call, program in enumerate([first, second, second, first, second]):
        np.testing.assert_array_equal(program(x) != 0, mask_of(leaf, call, 0, (3, 40)))
