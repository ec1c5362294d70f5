"""A training process that is killed at any moment goes on, and ends where an uninterrupted one does.

Run as a script, with a folder and a test, this file is a process that compiles once and then forks lives.
Each life resumes, trains and saves after every step, until it is killed.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from ptml.activations import Tanh
from ptml.data import DataLoader
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, chain, compile_train, cosine_schedule, ema
from ptml_state import Checkpointer

KILLS = 100  # of each kind: two hundred in all

# What an audit hook is told before the system is asked to do it.
TOUCHING = ("open", "fcntl.flock", "shutil.rmtree")
OF_FILES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir")


def described():
    """Compile a step with all that a resumed run has to keep."""
    net = Sequential(
        Linear("fc1", n_in=3, n_out=8),
        BatchNorm("bn", n_in=8),
        Tanh(),
        Dropout("drop", p=0.3),
        Linear("fc2", n_in=8, n_out=1),
    )
    loss, _ = supervised_loss(net(Input("X", (None, 3))), SquaredError())
    return compile_train(loss, chain(adam(cosine_schedule(1e-2, 500)), ema(0.9)), seed=1)


def data():
    """Give a loader whose epoch is five batches."""
    X = np.random.default_rng(0).normal(size=(37, 3))
    return DataLoader(X, X[:, :1] * X[:, 1:2], batch_size=8, shuffle=True, seed=2)


def endless(loader):
    """Give batches, epoch after epoch."""
    while True:
        yield from loader


class Uninterrupted:
    """A run that nothing happens to: the state after each step."""

    def __init__(self, program):
        self.program, self.states, self.positions = program, [program.state], [None]
        self.loader = data()
        self.batches = endless(self.loader)

    def after(self, step):
        """Give the state after a step, and where the loader stands then."""
        if len(self.states) <= step:
            self.program.store.load(self.states[-1])
        while len(self.states) <= step:
            self.program(*next(self.batches))
            self.states.append(self.program.state)
            self.positions.append(self.loader.state)
        return self.states[step], self.positions[step]


def live(program, folder, stop, tell, asynchronous):
    """Resume, and train until a step, telling of each that is saved."""
    loader = data()
    with Checkpointer(folder, keep_last=2, asynchronous=asynchronous) as checkpoints:
        found = checkpoints.resume(program, loader)
        done = 0 if found is None else found.step
        batches = endless(loader)
        while done < stop:
            program(*next(batches))
            done += 1
            checkpoints.save(done, program, {"done": done}, loader=loader)
            if asynchronous:
                done > 1 and os.write(tell, struct.pack("i", done - 1))  # which save waited for
            else:
                os.write(tell, struct.pack("i", done))


def born(*arguments, fatal=None):
    """Fork a life, and give its process and the end of the pipe where it tells what it saved.

    If `fatal` is given, the life ends itself with SIGKILL before it touches files for that many times.
    """
    hear, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, hear
    code = 1
    try:
        if fatal is not None:
            touched = itertools.count()

            def end(event, _):
                if (event in TOUCHING or event in OF_FILES) and next(touched) == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(end)
        program, folder, stop, asynchronous = arguments
        live(program, folder, stop, tell, asynchronous)
        code = 0
    finally:
        os._exit(code)


def ended(child, hear):
    """Wait for a life's end; give whether it was killed, and the last step that it told of."""
    _, status = os.waitpid(child, 0)
    told = b""
    while part := os.read(hear, 65536):
        told += part
    os.close(hear)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a life ended by an error"
    return os.WIFSIGNALED(status), max((step for (step,) in struct.iter_unpack("i", told)), default=0)


def examined(folder, told, uninterrupted):
    """Check all that a killed life left, and give the step from where the next one will go on."""
    names = {path.name for path in folder.iterdir()}
    half = any(name.startswith((".writing", ".removing")) for name in names)
    shown = {name for name in names if not name.startswith(".")}
    assert all(re.fullmatch(r"\d{6}-step-\d+", name) for name in shown)
    checkpoints = Checkpointer(folder)
    assert {path.name for path in folder.iterdir()} == shown, "what a dead run left was not cleaned"
    found = checkpoints.latest()  # a broken one would be an error, as warnings are
    step = 0 if found is None else found.step
    assert step >= told, "a checkpoint that save had returned from is gone"
    assert len(checkpoints.all()) == len(shown), "half of a checkpoint can be seen"
    for checkpoint in checkpoints.all():
        state, position = uninterrupted.after(checkpoint.step)
        assert checkpoint.restore() == state
        assert checkpoint.position == position
        assert checkpoint.extra == {"done": checkpoint.step}
    return step, half


def at_random_moments(folder, asynchronous):
    """Kill lives at random moments, and let the last one finish."""
    program = described()
    uninterrupted = Uninterrupted(program)
    uninterrupted.after(10)
    program.store.load(uninterrupted.states[0])
    # How long a life of a few steps takes here, from its birth to its end.
    start = time.perf_counter()
    ended(*born(program, folder, 4, asynchronous))
    span = time.perf_counter() - start
    moments = random.Random(0)
    kills = halves = step = 0
    while kills < KILLS:
        child, hear = born(program, folder, step + 1000, asynchronous)
        time.sleep(moments.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        killed, told = ended(child, hear)
        kills += killed
        step, half = examined(folder, told, uninterrupted)
        halves += half
    return finished(program, folder, step, asynchronous, uninterrupted, kills, halves)


def before_each_touch(folder, asynchronous):
    """End lives before the first, second, third, ... time that they touch files."""
    program = described()
    uninterrupted = Uninterrupted(program)
    uninterrupted.after(10)
    program.store.load(uninterrupted.states[0])
    # Killing a process does not lose what it has written, so the disk need not be waited for.
    os.fsync = lambda descriptor: None
    kills = halves = step = 0
    for fatal in itertools.count():
        killed, told = ended(*born(program, folder, step + 2, asynchronous, fatal=fatal))
        kills += killed
        step, half = examined(folder, told, uninterrupted)
        halves += half
        if not killed:
            break
        # One that nothing happens to; else there would be more to delete from one life to the next.
        ended(*born(program, folder, step + 1, asynchronous))
        step += 1
    return finished(program, folder, step, asynchronous, uninterrupted, kills, halves)


def finished(program, folder, step, asynchronous, uninterrupted, kills, halves):
    """Let a last life make ten steps, and compare it with the uninterrupted run."""
    killed, _ = ended(*born(program, folder, step + 10, asynchronous))
    assert not killed
    state, _ = uninterrupted.after(step + 10)
    return {
        "kills": kills,
        "halves": halves,
        "step": step,
        "same": Checkpointer(folder).restore() == state,
        "left": sorted(path.name.partition("-")[2] for path in folder.iterdir()),
    }


if __name__ == "__main__":
    warnings.simplefilter("error")
    gc.freeze()  # what is there is for all lives: collecting must not copy it into each
    test = {"random": at_random_moments, "each": before_each_touch}[sys.argv[2]]
    print(json.dumps(test(Path(sys.argv[1]), sys.argv[3] == "background")))  # noqa: T201 told to the test
    sys.exit()


def run(folder, test, writing):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, __file__, folder, test, writing],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result["same"], "the parameters differ from those of an uninterrupted run"
    last = result["step"] + 10
    assert result["left"] == [f"step-{last - 1}", f"step-{last}"]
    return result


@pytest.mark.parametrize("writing", ["foreground", "background"])
def test_a_run_killed_at_random_moments_ends_as_one_that_never_was(tmp_path, writing):
    result = run(tmp_path, "random", writing)
    assert result["kills"] == KILLS
    assert result["step"] > 10  # it got somewhere
    assert result["halves"] > 10  # and was often killed while it wrote


def test_so_does_one_killed_before_each_time_that_it_touches_a_file(tmp_path):
    result = run(tmp_path, "each", "foreground")
    assert result["kills"] > 50
    assert result["halves"] > 15
