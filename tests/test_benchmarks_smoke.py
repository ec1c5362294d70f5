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


@pytest.mark.parametrize("name", ["tiny", "tiny-cnn", "tiny-lstm", "tiny-transformer"])
def test_the_gradients_that_losses_are_made_with_are_those_of_finite_differences(report, name):
    workload = report.WORKLOADS[name]
    features, labels = workload.data()
    features = features.astype("float64") if features.dtype == "float32" else features
    weights = {leaf: value.astype("float64") for leaf, value in workload.weights().items()}
    _, gradients = workload.gradients(weights, features, labels)
    assert set(gradients) == set(weights)
    rng = np.random.default_rng(2)
    for leaf, value in weights.items():
        along = 1e-6 * rng.standard_normal(value.shape)
        ahead, behind = (
            workload.gradients({**weights, leaf: value + sign * along}, features, labels)[0]
            for sign in (1, -1)
        )
        assert (ahead - behind) / 2e-6 == pytest.approx(np.sum(gradients[leaf] * along) / 1e-6, abs=1e-7), (
            leaf
        )


@pytest.mark.parametrize("frameworks", [["ptml-numba"], ["jax-optax", "jax-equinox"]], ids="-".join)
def test_networks_of_every_kind_train_as_numpy_does(tmp_path, frameworks):
    if "jax-optax" in frameworks:
        pytest.importorskip("equinox", reason="the peers are not installed: pip install 'ptml[bench]'")
    networks = ["tiny-cnn", "tiny-lstm", "tiny-transformer"]
    options = ["--quick", "--workloads", *networks, "--leaves", "--only", *frameworks]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *options, "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for framework in frameworks:
        rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {framework}")]
        verdicts = [row.strip("| ").split("|")[-1].strip() for row in rows if len(row.split("|")) == 13]
        assert verdicts == ["agree"] * 3, done.stdout + done.stderr


def test_losses_behind_random_masks_must_fall(report):
    assert report.verdict("norm", _started([2.0, 1.9, 2.1, 1.8, 1.7])) == "fall"
    assert report.verdict("norm", _started([2.0, 1.9, 2.1, 1.8, 2.0])) == "**do not fall (cold)**"


def test_ratios_are_medians_of_the_ratios_within_rounds(report):
    def rounds(*times):
        return {"rounds": [{"step": {"median": time}} for time in times]}

    # The machine was twice as slow in the second round.
    results = {"ptml-c": rounds(3.0, 6.0, 3.0), "jax-optax": rounds(2.0, 4.0, 2.0)}
    assert report.ratio(results, "ptml-c", "jax-optax", "step") == "1.50"
    assert report.ratio(results, "ptml-c", None, "step") == "-"


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


def test_updates_alone_are_measured_and_their_kernels_counted(tmp_path):
    options = [
        "--quick",
        "--only",
        "ptml-numba",
        "ptml-c",
        "--rules",
        "sgd",
        "adam",
        "--results",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "updates", "--quick", *options],
        cwd=ROOT,
        env={**os.environ, "PYTENSOR_FLAGS": "cxx="},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    ratios, times, moves = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "|" in line]
        for part in done.stdout.split("###")[1:]
    )
    assert ratios[0] == ["rule", "3 tiny: x ptml-c", "3 tiny: kernels"]
    assert [row[0] for row in ratios[2:]] == ["sgd", "adam"]
    # Without a clock a rule is one kernel; Adam's clock and its bias correction are two more.
    assert [row[2] for row in ratios[2:]] == ["1", "3"]
    assert all(float(cell) > 0 for row in times[2:] for cell in row[1:])
    assert all(row[1] == row[2] for row in moves[2:])
    (written,) = tmp_path.glob("*.json")
    assert set(json.loads(written.read_text("utf-8"))["updates"]) == {"sgd", "adam"}


def test_growth_is_the_slope_of_the_logarithms(report):
    sys.path.insert(0, str(ROOT))
    try:
        from tests.benchmarks.growth import exponent, growth_report
    finally:
        sys.path.remove(str(ROOT))
    assert exponent([4, 16, 64], [2.0, 8.0, 32.0]) == pytest.approx(1.0)
    assert exponent([64, 256, 1024], [1e-3, 1.6e-2, 0.256]) == pytest.approx(2.0)

    def measured(name, step, cold):
        start = {"import": 9.0, "build": 0.0, "compile": cold / 2, "first_step": cold / 2, "finite": True}
        start["losses"] = report.WORKLOADS[name].losses(report.STEPS)
        result = {"cold": start, "rounds": [{"step": {"median": step}}]}
        return {"load": [0.5], "frameworks": {"ptml-c": result}}

    lines = growth_report("depth", {4: measured("depth-4", 1e-3, 1.0), 16: measured("depth-16", 8e-3, 4.0)})
    (row,) = [line for line in lines.splitlines() if line.startswith("| ptml-c")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["ptml-c", "1000", "8000", "1.50", "1.00", "4.00", "1.00", "agree"]


def test_one_command_measures_archives(tmp_path):
    options = ["--megabytes", "1", "--rounds", "1", "--pause", "0", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.archives", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "x raw" in done.stdout
    assert list(tmp_path.iterdir()) == []
