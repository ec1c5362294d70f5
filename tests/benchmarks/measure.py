"""Run workloads: first calls one after the other in fresh processes, then steps in interleaved rounds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.host import Failed, Worker

__all__ = ["Plan", "installed", "run"]


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Parameters
    ----------
    pythons : dict
        From a framework's name to the interpreter that has it.
    threads : int
    rounds : int
        How often every framework is measured, each once before any is measured again.
    seconds : float
        How long each measurement takes.
    warm : bool
        Whether a second process starts with the first one's caches, and is the one measured.
    tell : callable
        What is done with a line about progress.
    """

    pythons: dict[str, str]
    threads: int = 1
    rounds: int = 9
    seconds: float = 0.4
    warm: bool = True
    tell: Callable[[str], None] = field(default=lambda line: print(line, file=sys.stderr, flush=True))


def installed(python: str, packages: Sequence[str]) -> bool:
    """Say whether an interpreter has these packages, without importing them."""
    code = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    root = Path(__file__).parents[2]
    return subprocess.run([python, "-c", code, *packages], cwd=root, capture_output=True).returncode == 0


def run(task: str, plan: Plan) -> dict[str, Any]:
    """Measure one task on every framework of the plan.

    Parameters
    ----------
    task : str
        As a worker takes it.

    Returns
    -------
    dict
        ``load``, the machine's load average before each round; and by framework: ``cold`` and ``warm``, what
        the two processes report, ``rounds``, a list of measurements by call, or ``failed``, a text.
    """
    results: dict[str, dict[str, Any]] = {name: {} for name in plan.pythons}
    loads: list[float] = []
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="ptml-benchmark-"))
        workers: dict[str, Worker] = {}
        for name in plan.pythons:
            try:
                workers[name] = _start(task, name, plan, Path(scratch) / name, results[name])
            except Failed as failure:
                results[name]["failed"] = str(failure)
                plan.tell(f"{task}: {name} failed: {failure}")
            else:
                stack.callback(workers[name].close)
        for number in range(plan.rounds):
            loads.append(os.getloadavg()[0])
            # There and back, so that nobody is always the one after the heaviest.
            order = list(workers) if number % 2 == 0 else list(workers)[::-1]
            for name in order:
                measured = {
                    call: workers[name].measure(call, plan.seconds) for call in workers[name].ready["calls"]
                }
                results[name].setdefault("rounds", []).append(measured)
            plan.tell(f"{task}: round {number + 1} of {plan.rounds}, load {loads[-1]:.2f}")
    return {"load": loads, "frameworks": results}


def _start(task: str, name: str, plan: Plan, caches: Path, result: dict[str, Any]) -> Worker:
    """Start the process that is measured, after one that fills the caches where the plan wants it so."""
    assert name in FRAMEWORKS
    caches.mkdir()
    started = ["cold", "warm"] if plan.warm else ["cold"]
    for phase in started:
        worker = Worker(plan.pythons[name], name, task, caches=caches, threads=plan.threads)
        result[phase] = worker.ready
        plan.tell(f"{task}: {name} {phase} in {worker.ready['total']:.1f} s")
        if phase != started[-1]:
            worker.close()
    return worker
