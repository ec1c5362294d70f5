"""The convolution example, run as a user runs it, with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "convolution.py")]
    return subprocess.run(
        [*command, "--output", str(output), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_short_training_reads_nearly_all_digits_and_a_picture_is_saved(tmp_path):
    done = _run(tmp_path / "out", "--epochs", "6")
    accuracy = float(done.stdout.partition("held-out accuracy ")[2].split()[0])
    assert accuracy >= 0.95, done.stdout + done.stderr
    assert (tmp_path / "out" / "convolution.png").read_bytes().startswith(b"\x89PNG")
    # The claim is that of all epochs; what misses it says so, and is a failure.
    assert done.returncode == (accuracy < 0.985)
    assert ("the network has not learned what it should" in done.stdout) == (accuracy < 0.985)


def test_the_same_seed_gives_the_same_network(tmp_path):
    said = [_run(tmp_path, "--epochs", "1", "--seed", "3").stdout for _ in range(2)]
    first, second = ([line for line in text.splitlines() if "training" in line] for text in said)
    assert first
    assert first == second
