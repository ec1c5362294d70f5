"""The forecasting example, run as a user runs it, with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "forecasting.py")]
    return subprocess.run(
        [*command, "--output", str(output), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_lstm_forecasts_better_than_the_naive_forecasts(tmp_path):
    done = _run(tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    ratio = float(done.stdout.partition("better naive forecast ")[2].split()[0])
    assert ratio < 0.3, done.stdout
    assert (tmp_path / "out" / "forecasting.png").read_bytes().startswith(b"\x89PNG")


def test_too_little_training_is_a_failure(tmp_path):
    done = _run(tmp_path, "--epochs", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "above 0.3: the network has not learned what it should" in done.stdout
