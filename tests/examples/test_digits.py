"""The digits example, run as a user runs it, with warnings as errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ptml_state import Role, load_state

ROOT = Path(__file__).parents[2]


def _start(output: Path, *arguments: str) -> subprocess.Popen[str]:
    pytest.importorskip(
        "jax", reason="jax, which compiles fastest, is not installed: pip install 'ptml[jax]'"
    )
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "digits.py"), "--backend", "jax"]
    return subprocess.Popen(
        [*command, "--output", str(output), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_digits_are_learned_to_97_percent_and_state_and_plot_are_saved(tmp_path):
    said, _ = _start(tmp_path / "out", "--epochs", "15").communicate(timeout=300)
    accuracy = float(said.partition("held-out accuracy ")[2].split()[0])
    assert accuracy >= 0.97, said
    # The state tree is printed, and what was saved is a whole training state.
    assert "fc1" in said
    assert "optimizer" in said
    state = load_state(tmp_path / "out" / "digits.safetensors")
    assert set(state.roles.values()) == set(Role) - {Role.CACHE}
    assert (tmp_path / "out" / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_the_training_and_saves_and_too_little_accuracy_is_a_failure(tmp_path):
    run = _start(tmp_path, "--epochs", "100000")
    said = ""
    for line in run.stdout:
        said += line
        if line.startswith("epoch"):
            run.send_signal(signal.SIGINT)
            break
    rest, _ = run.communicate(timeout=300)
    assert "stopped in epoch" in rest, said + rest
    assert "below 0.97: the network has not learned what it should" in rest
    assert run.returncode == 1
    assert load_state(tmp_path / "digits.safetensors")["adam/step_count"] > 0
