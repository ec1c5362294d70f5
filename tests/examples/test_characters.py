"""The characters example, run as a user runs it, with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-W", "error", str(ROOT / "examples" / "characters.py")),
            *("--quick", "--output", str(output), *arguments),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def _number(said: str, before: str) -> float:
    return float(said.partition(before)[2].split()[0].rstrip(","))


@pytest.mark.backends("numba", "jax")
def test_a_small_model_beats_counting_characters_and_writes_with_its_caches(tmp_path, backend):
    done = _run(tmp_path / "out", "--backend", backend)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _number(done.stdout, "bits per character; counting characters ") > _number(
        done.stdout, "held out "
    )
    assert "ms a character" in done.stdout
    assert "\nThe " in done.stdout
    assert (tmp_path / "out" / "characters.png").read_bytes().startswith(b"\x89PNG")


def test_too_little_training_is_a_failure(tmp_path):
    done = _run(tmp_path, "--steps", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the network has not learned what it should" in done.stdout
