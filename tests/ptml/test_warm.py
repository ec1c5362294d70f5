"""The command line, and the kernel cache that it fills ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptml.__main__ import main

TRAIN = """
import numpy as np
import pytensor
import ptml
from ptml.activations import ReLU, Tanh
from ptml.layers import Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, compile_train
from ptml.backends.numba.plan.runtime.cache import kernels

for activation in (ReLU(), Tanh()):
    net = Sequential(
        Linear("fc1", n_in=20, n_out=30), activation, Linear("fc2", n_in=30, n_out=40), activation,
        Linear("fc3", n_in=40, n_out=10),
    )
    X = Input("X", shape=(None, 20))
    loss, _ = supervised_loss(net(X), CrossEntropy(expect_logits=True))
    step = compile_train(loss, adam(3e-4, beta2=0.98), seed=0)
    x, y = np.ones((16, 20), pytensor.config.floatX), np.arange(16) % 10
    step(x, y)
    step(x, y)
    ptml.compile_predict(net(X), state=step)(x)
print(kernels.compiled, kernels.loaded)
"""


def run(*command: str, cache: str, flags: str = "floatX=float32") -> subprocess.CompletedProcess:
    environment = {**os.environ, "PTML_CACHE_DIR": cache, "PYTENSOR_FLAGS": flags}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("kernels"))
    child = run("-m", "ptml", "warm", "--dtype", "float32", cache=directory)
    assert child.returncode == 0, child.stderr
    assert directory in child.stdout
    assert "kernels compiled" in child.stdout
    return directory


def test_after_it_a_network_compiles_no_kernels(cache):
    child = run("-c", TRAIN, cache=cache)
    assert child.returncode == 0, child.stderr
    compiled, loaded = map(int, child.stdout.split())
    assert compiled == 0
    assert loaded > 5


def test_a_second_time_it_finds_them_all_and_may_be_quiet(cache):
    kept = sorted(Path(cache).rglob("*.o"))
    child = run("-m", "ptml", "warm", "--dtype", "float32", "--quiet", cache=cache)
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")
    assert sorted(Path(cache).rglob("*.o")) == kept


def test_without_a_place_to_keep_them_it_says_so():
    child = run("-m", "ptml", "warm", cache="")
    assert child.returncode == 1
    assert "PTML_CACHE_DIR is set to nothing" in child.stderr


def test_without_a_command_it_prints_help(capsys):
    assert main([]) == 2
    assert "warm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worm"], "invalid choice: 'worm'"),
        (["warm", "--backend", "jax"], "invalid choice: 'jax'"),
        (["warm", "--dtype", "float16"], "invalid choice: 'float16'"),
        (["warm", "--quite"], "unrecognized arguments: --quite"),
    ],
)
def test_a_mistyped_argument_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err
