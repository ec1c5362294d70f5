"""The benchmarks run: a tiny network on the C backend's interpreter, and what the tables say of losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def report():
    """The module that writes the tables, imported as the command imports it."""
    sys.path.insert(0, str(ROOT))
    try:
        import tests.benchmarks.report as module
    finally:
        sys.path.remove(str(ROOT))
    return module


def _started(losses, finite=True):
    return {"cold": {"losses": losses, "finite": finite}}


def test_one_command_measures_a_network_and_the_overhead_of_calls(tmp_path):
    options = ["--quick", "--workloads", "tiny", "--only", "ptml-c", "--leaves", "2", "4"]
    # Without a compiler PyTensor interprets the graph: slow, and ready in a second.
    environment = {**os.environ, "PYTENSOR_FLAGS": "cxx="}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *options, "--results", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ptml-c")]
    steps, start, call, bare = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert steps[-1] == "agree"
    assert start[1] == "cold"
    assert [call[0], bare[0]] == ["ptml-c", "ptml-c, PyTensor's function alone"]
    (written,) = tmp_path.glob("*.json")
    measured = json.loads(written.read_text("utf-8"))
    (once,) = measured["workloads"]["tiny"]["frameworks"]["ptml-c"]["rounds"]
    assert once["step"]["median"] > 0
    assert once["step"]["peak"] > 20e6


def test_first_losses_are_compared_with_numpy_in_float64(report):
    right = report.WORKLOADS["tiny"].losses(report.STEPS)
    assert np.all(np.diff(right) < 0)
    assert report.verdict("tiny", _started(right)) == "agree"
    assert report.verdict("tiny", _started([*right[:-1], right[-1] * 1.001])) == "**off by 1e-03 (cold)**"
    assert report.verdict("tiny", _started([*right[:-1], float("nan")])) == "**not finite (cold)**"
    assert report.verdict("tiny", _started(right, finite=False)) == "**not finite (cold)**"


def test_losses_behind_random_masks_must_fall(report):
    assert report.verdict("norm", _started([2.0, 1.9, 2.1, 1.8, 1.7])) == "fall"
    assert report.verdict("norm", _started([2.0, 1.9, 2.1, 1.8, 2.0])) == "**do not fall (cold)**"


def test_ratios_are_medians_of_the_ratios_within_rounds(report):
    def rounds(*times):
        return {"rounds": [{"step": {"median": time}} for time in times]}

    # The machine was twice as slow in the second round.
    results = {"ptml-c": rounds(3.0, 6.0, 3.0), "jax-optax": rounds(2.0, 4.0, 2.0)}
    assert report._ratio(results, "ptml-c", "jax-optax", "step") == "1.50"
    assert report._ratio(results, "ptml-c", None, "step") == "-"


def test_a_framework_that_fails_is_named_with_what_it_said():
    # No such task: the worker's own error comes back over its pipe.
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.worker", "ptml-c", "no such workload"],
        cwd=ROOT,
        input="",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": "KeyError: 'no such workload'"}
