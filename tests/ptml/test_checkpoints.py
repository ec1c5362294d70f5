"""A run goes on from a checkpoint bit for bit, whatever its state is made of and whatever wrote it."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from typing import NamedTuple

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import ReLU
from ptml.data import DataLoader
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    adam,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    ema,
    reduce_on_plateau,
    scalar_state,
    scale_by_schedule,
    sgd,
)
from ptml_state import Checkpointer, CheckpointError, Role, State

# One batch is bad on purpose, and where NumPy computes, it says so.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")

EVERY = ("numba", "c", "jax", "mlx")
BAD = 3  # the batch of the first epoch whose loss is not finite


@functools.cache
def described():
    """Give a loss and a rule that keep everything a run can keep."""
    with pytensor.config.change_flags(floatX="float32"):
        net = Sequential(
            Linear("fc1", n_in=6, n_out=8),
            BatchNorm("bn", n_in=8),
            ReLU(),
            Dropout("drop", p=0.2),
            Linear("fc2", n_in=8, n_out=1),
        )
        loss, _ = supervised_loss(net(Input("X", (None, 6))), SquaredError())
        scale = scalar_state("scale", 1.0)
        slower = scale_by_schedule(cosine_schedule(1.0, 20))
        rule = chain(clip_by_global_norm(1.0), adam(1e-2 * scale), slower, ema(0.9))
        guarded = apply_if_finite(rule, max_consecutive_skips=3)
        return loss, reduce_on_plateau(guarded, scale, patience=1, accumulation_size=2, factor=0.5, rtol=0.9)


def data():
    """Give a loader whose epoch is seven batches, the last of them smaller."""
    X = np.random.default_rng(0).normal(size=(200, 6))
    y = np.tanh(X[:, :1])
    loader = DataLoader(X, y, batch_size=32, shuffle=True, seed=5, float_dtype="float32")
    bad = next(itertools.islice(loader, BAD, None))
    y[(X.astype("float32") == bad[0][0]).all(1)] = np.inf
    return DataLoader(X, y, batch_size=32, shuffle=True, seed=5, float_dtype="float32")


def endless(loader):
    """Give batches, epoch after epoch."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def train(program, batches, steps):
    """Make some steps, and give their losses."""
    return [float(program(*batch)) for batch in itertools.islice(batches, steps)]


class Run(NamedTuple):
    """Ten steps without a break, and a checkpointer that saved after the fifth."""

    losses: list[float]
    checkpoints: Checkpointer
    saved: State
    last: State


@functools.cache
def start():
    """Give the state that every run starts at."""
    plain = Mode(linker="py", optimizer=None)
    return compile_train(*described(), seed=1, compile_kwargs={"mode": plain}).store.state


@functools.cache
def program(backend):
    """Compile the step, over a store of its own."""
    return compile_train(*described(), state=start(), backend=backend)


def available():
    """Give the backends that can run here."""
    packages = {"numba": "numba", "c": "pytensor", "jax": "jax", "mlx": "mlx"}
    return [name for name, package in packages.items() if importlib.util.find_spec(package)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Give the uninterrupted run of a backend."""

    @functools.cache
    def on(backend):
        step, loader = program(backend), data()
        step.store.load(start())
        batches = endless(loader)
        losses = train(step, batches, 5)
        checkpoints = Checkpointer(tmp_path_factory.mktemp(backend), asynchronous=True)
        checkpoints.save(5, step, {"losses": losses}, loader=loader)
        saved = step.store.state
        losses += train(step, batches, 5)  # while it is being written
        checkpoints.close()
        return Run(losses, checkpoints, saved, step.store.state)

    return on


@pytest.mark.backends(*EVERY)
def test_a_run_goes_on_bit_for_bit(backend, run):
    first, step, loader = run(backend), program(backend), data()
    step.store.load(start())
    train(step, endless(loader), 2)  # the program and the loader have been elsewhere
    found = first.checkpoints.resume(step, loader)
    assert step.store.state == first.saved
    assert found.step == 5
    assert found.extra == {"losses": first.losses[:5]}
    assert (loader.state["epoch"], loader.state["batch"]) == (0, 5)
    assert train(step, endless(loader), 5) == first.losses[5:]
    assert loader.epoch == 1
    assert step.store.state == first.last
    # All that there is to get wrong was on its way when it was saved.
    for owner in ("fc1", "bn", "drop", "fc2", "adam", "scale", "ema", "plateau", "skip_if"):
        assert start().select(owner).diff(first.saved.select(owner)), owner
    assert len({address.partition("/")[0] for address in first.saved} - {"scale_by_schedule"}) == 9
    assert first.saved["skip_if/total_skips"] == 1
    assert first.last["adam/step_count"] == 10 - first.last["skip_if/total_skips"]
    assert first.last["scale"] < first.saved["scale"] <= 1


@pytest.mark.backends(*EVERY)
def test_what_one_backend_saved_every_other_goes_on_from(backend, run):
    for source in available():
        first, step, loader = run(source), program(backend), data()
        assert first.checkpoints.resume(step, loader).step == 5
        assert step.store.state == first.saved
        losses = train(step, endless(loader), 5)
        np.testing.assert_allclose(losses, first.losses[5:], rtol=1e-4, err_msg=source)
        last = step.store.state
        assert last.select(Role.CLOCK | Role.GENERATOR) == first.last.select(Role.CLOCK | Role.GENERATOR)
        assert last["scale"] == first.last["scale"]
        assert last["skip_if"] == first.last["skip_if"]


def small(*names, seed):
    """Compile a step of two layers."""
    X = Input("X", (None, 2))
    layers = [Linear(*name, n_in=2, n_out=2) for name in names]
    mode = Mode(linker="py", optimizer="fast_compile")
    loss = (Sequential(*layers)(X) ** 2).mean()
    return compile_train(loss, sgd(0.1), seed=seed, compile_kwargs={"mode": mode})


def test_a_checkpoint_of_another_network_is_refused_and_nothing_changes(tmp_path):
    step, other = small(("a",), ("b",), seed=0), small(("a",), ("c",), seed=1)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, step)
        before = other.store.state
        with pytest.raises(ValueError, match=r"c/W"):
            checkpoints.resume(other)
        assert other.store.state == before
        with pytest.raises(ValueError, match=r"c/W"):
            checkpoints.restore(like=other)
        assert checkpoints.restore(like=step) == step.state


def test_a_state_that_was_restored_starts_a_program_or_predicts(tmp_path):
    step = small(("a",), ("b",), seed=0)
    step([[1.0, 2.0]])
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, step.store, metric=step([[1.0, 2.0]]))
        checkpoints.save(2, step.state, metric=1e9)
        best = checkpoints.best()
        assert best.step == 1
        layer = Linear("a", n_in=2, n_out=2)
        options = {"compile_kwargs": {"mode": Mode(linker="py", optimizer="fast_compile")}}
        predict = ptml.compile_predict(layer(Input("X", (None, 2))), state=best.restore(), **options)
        np.testing.assert_array_equal(predict([[0.0, 0.0]]), [best.restore()["a/b"]])
        (best.path / "state.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"step-1 is broken: state\.safetensors is not what was"):
            best.restore()
