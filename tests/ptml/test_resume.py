"""A run that is saved and resumed, or moved to another backend, goes on as if nothing had happened.

Run as a script, with a folder and a backend, this file is the new process that resumes.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode
from sklearn.datasets import load_digits

import ptml
from ptml.activations import ReLU
from ptml.data import DataLoader
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, chain, clip_by_global_norm, compile_train, cosine_schedule, sgd
from ptml_state import Role, State, load_state, save_state

EVERY = ("numba", "c", "jax", "mlx")


def described():
    """Give the loss of a network, and a rule, described anew."""
    with pytensor.config.change_flags(floatX="float32"):
        net = Sequential(
            Linear("fc1", n_in=64, n_out=16),
            BatchNorm("bn", n_in=16),
            ReLU(),
            Dropout("drop", p=0.2),
            Linear("fc2", n_in=16, n_out=10),
        )
        logits = net(Input("X", (None, 64)))
        loss, _ = supervised_loss(logits, CrossEntropy(expect_onehot_labels=False, expect_logits=True))
        return loss, chain(clip_by_global_norm(1.0), adam(cosine_schedule(1e-2, 20)))


def digits():
    """Give a loader whose epoch is seven batches, the last of them smaller."""
    pixels, labels = load_digits(return_X_y=True)
    return DataLoader(
        pixels[:200] / 16, labels[:200], batch_size=32, shuffle=True, seed=5, float_dtype="float32"
    )


def endless(loader):
    """Give batches, epoch after epoch."""
    while True:
        yield from loader


def train(program, batches, steps):
    """Make some steps, and give their losses."""
    return [float(program(*batch)) for batch in itertools.islice(batches, steps)]


def resume(folder, backend):
    """Go on, in this process, from each state that another one saved."""
    program = compile_train(*described(), seed=99, backend=backend)
    position = json.loads((folder / "position.json").read_text())
    losses = {}
    for file in sorted(folder.glob("saved-*.safetensors")):
        program.store.load(load_state(file))
        loader = digits()
        loader.load(position)
        source = file.stem.removeprefix("saved-")
        losses[source] = train(program, endless(loader), 5)
        save_state(program.state, folder / f"last-{source}.safetensors")
    (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    resume(Path(sys.argv[1]), sys.argv[2])
    sys.exit()


class Run(NamedTuple):
    """Ten steps without a break, looked into after the fifth."""

    losses: list[float]
    saved: State
    position: dict[str, int]
    last: State


@functools.cache
def origin():
    """Give one description, and a program over the store that every test here shares."""
    loss, rule = described()
    program = compile_train(loss, rule, seed=1, compile_kwargs={"mode": Mode(linker="py", optimizer=None)})
    return loss, rule, program, program.state


@functools.cache
def live(backend):
    """Compile a step over the shared store."""
    loss, rule, program, _ = origin()
    return compile_train(loss, rule, state=program, backend=backend)


def started(backend):
    """Give the backend's program, with the shared store back at the start."""
    program = live(backend)
    program.store.load(origin()[-1])
    return program


@functools.cache
def uninterrupted(backend):
    """Make ten steps from the start."""
    program, loader = started(backend), digits()
    batches = endless(loader)
    losses = train(program, batches, 5)
    saved, position = program.state, loader.state
    return Run(losses + train(program, batches, 5), saved, position, program.state)


def available():
    """Give the backends that can run here."""
    packages = {"numba": "numba", "c": "pytensor", "jax": "jax", "mlx": "mlx"}
    return [name for name, package in packages.items() if importlib.util.find_spec(package)]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Go on from the states that every backend saved, in a new process of one backend."""

    @functools.cache
    def on(backend):
        folder = tmp_path_factory.mktemp(backend)
        for source in available():
            save_state(uninterrupted(source).saved, folder / f"saved-{source}.safetensors")
        (folder / "position.json").write_text(json.dumps(uninterrupted(backend).position))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.run(
            [sys.executable, __file__, folder, backend],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        losses = json.loads((folder / "losses.json").read_text())
        return {name: (losses[name], load_state(folder / f"last-{name}.safetensors")) for name in losses}

    return on


@pytest.mark.backends(*EVERY)
def test_a_run_resumed_in_a_new_process_is_the_same_bit_for_bit(backend, resumed):
    run = uninterrupted(backend)
    assert run.position["epoch"] == 0
    assert run.position["batch"] == 5
    losses, last = resumed(backend)[backend]
    assert losses == run.losses[5:]
    for role in Role:
        assert last.select(role) == run.last.select(role)
    assert last == run.last
    # It went somewhere: every leaf moved between the two.
    assert all(not np.array_equal(run.saved[address], run.last[address]) for address in run.saved)


@pytest.mark.backends(*EVERY)
def test_a_state_saved_on_any_backend_goes_on_on_any_other(backend, resumed):
    for source, (losses, last) in resumed(backend).items():
        run = uninterrupted(source)
        np.testing.assert_allclose(losses, run.losses[5:], rtol=1e-4, err_msg=source)
        # What counts and what draws has no rounding.
        assert last.select(Role.CLOCK | Role.GENERATOR) == run.last.select(Role.CLOCK | Role.GENERATOR)


@pytest.mark.parametrize("other", EVERY)
@pytest.mark.backends(*EVERY)
def test_training_moves_between_backends_over_one_live_store(backend, other):
    if other not in available():
        pytest.skip(f"{other} is not installed")
    run = uninterrupted(backend)
    batches = endless(digits())
    losses = train(started(backend), batches, 2)
    losses += train(live(other), batches, 2)
    losses += train(live(backend), batches, 1)
    np.testing.assert_allclose(losses, run.losses[:5], rtol=1e-4)
    state = live(other).state
    assert state.select(Role.CLOCK | Role.GENERATOR) == run.saved.select(Role.CLOCK | Role.GENERATOR)
    assert all(type(value) is np.ndarray for value in state.values())
    assert {a: v.dtype for a, v in state.items()} == {a: v.dtype for a, v in run.saved.items()}
    if other == backend:
        assert state == run.saved


class Two(ptml.Layer):
    """Two numbers."""

    @ptml.slot
    def p(self):
        return ptml.parameter((2,), Zeros())

    def build(self, X):
        return X * self.p


@pytest.mark.backends(*EVERY)
def test_what_one_backend_trained_every_other_reads(backend, float32):
    X = Input("X", (None, 2))
    Y = Two("two")(X)
    step = compile_train(Y.sum(), sgd(0.1), seed=0, backend=backend)
    x = np.ones((1, 2), "float32")
    step(x)
    taken = step.state
    assert type(taken["two/p"]) is np.ndarray
    assert taken["two/p"].dtype == "float32"
    for other in available():
        for state in (step, taken):
            doubled = ptml.compile_predict(Y, state=state, backend=other)(2 * x)
            np.testing.assert_allclose(doubled, [[-0.2, -0.2]], rtol=1e-6, err_msg=other)
    # Predicting elsewhere left the store where this backend goes on, and the state taken is a copy.
    step(x)
    np.testing.assert_allclose(step.state["two/p"], [-0.2, -0.2], rtol=1e-6)
    np.testing.assert_allclose(taken["two/p"], [-0.1, -0.1], rtol=1e-6)


def test_a_taken_state_is_never_handed_to_another_unnamed_layer(tmp_path):
    one, other = Linear(n_in=2, n_out=2, bias=False), Linear(n_in=2, n_out=2, bias=False)
    X = Input("X", (None, 2))
    options = {"compile_kwargs": {"mode": Mode(linker="py", optimizer="fast_compile")}}
    step = compile_train((Sequential(one, other)(X) ** 2).mean(), sgd(0.1), seed=0, **options)
    step.store.set({one.W: np.eye(2), other.W: 2 * np.eye(2)})
    assert [address for address, role in step.state.roles.items() if role is Role.PARAMETER] == [
        "Linear_1/W",
        "Linear_2/W",
    ]
    assert step([[1.0, 1.0]]) == 4
    swapped = Sequential(other, one)(X)
    save_state(step.state, tmp_path / "two.safetensors")
    for state in (step.state, load_state(tmp_path / "two.safetensors")):
        with pytest.raises(ValueError, match=r"'Linear_2/W', and here its address is 'Linear_1/W'.*Give a n"):
            ptml.compile_predict(swapped, state=state, **options)
    with pytest.raises(ValueError, match=r"'Linear_2/W', and here it would be at 'Linear_1/W'.*Give a name"):
        ptml.compile_predict(swapped, state=step, **options)
