"""The process that one framework runs one workload in: ``python -m tests.benchmarks.worker FRAMEWORK TASK``.

It prepares the task, says how long each part took, and then measures what it is asked to, until its input
ends: JSON, a line for each message. TASK is a workload's name, or ``leaves:10,100`` for the overhead of
calls, or ``updates:adam:100,2 of 8M`` for a rule's update alone. It runs in any environment that has NumPy
and the framework.

A framework's module offers up to three classes.

``Training(workload, variant)`` builds the network and its training step. It has ``step()``, ``predictor()``,
which gives a function that predicts the batch, ``wait(result)``, which gives a result as a numpy array when
the work is done, and ``compile_seconds``, the part of the building that compiled, or None where the first
call compiles.

``Leaves(count, variant)`` adds an array to each of `count` leaves and sums it. It has ``calls``, what to
time by name, and ``wait``.

``Updates(rule, size, variant)``, beside ``RULES``, the names of rules that it has, moves some parameters by
gradients that stay. It has ``step()``, ``wait``, and ``first()``, which gives the first parameter.

Either of ``Training`` and ``Updates`` may have ``report()``, which gives more to tell when steps were made.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.workloads import WORKLOADS

__all__ = ["STEPS", "main"]

#: How many first losses are compared.
STEPS = 5

#: What is reported of the preparation, and what can then be timed: a call, and what waits for its result.
Prepared = tuple[dict[str, Any], dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]]


def timed(call: Callable[[], Any], wait: Callable[[Any], Any]) -> tuple[float, Any]:
    """Give the seconds that one call takes until its result is there, and the result."""
    start = time.perf_counter()
    result = wait(call())
    return time.perf_counter() - start, result


def measure(call: Callable[[], Any], wait: Callable[[Any], Any], seconds: float) -> dict[str, float]:
    """Call again and again for about so many seconds, and give statistics of single calls.

    Returns
    -------
    dict
        ``median``, ``p10``, ``least`` and ``mean`` seconds of a call; ``cpu``, the mean processor time of
        one, by all threads; and ``calls``, how many there were.
    """
    timed(call, wait)
    guess, _ = timed(call, wait)
    count = int(min(max(seconds / guess, 5), 20_000))
    taken = np.empty(count)
    busy = time.process_time()
    for k in range(count):
        taken[k], _ = timed(call, wait)
    busy = time.process_time() - busy
    return {
        "median": float(np.median(taken)),
        "p10": float(np.quantile(taken, 0.1)),
        "least": float(taken.min()),
        "mean": float(taken.mean()),
        "cpu": busy / count,
        "calls": count,
    }


def peak_bytes() -> int:
    """Give the most memory that this process has held at once."""
    try:
        # Unlike getrusage's, this number does not begin with that of the process that started us.
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def prepare_training(module: Any, workload: str, variant: str) -> Prepared:
    """Build a workload and train its first steps."""
    start = time.perf_counter()
    training = module.Training(WORKLOADS[workload], variant)
    built = time.perf_counter() - start
    compiled = training.compile_seconds
    first, loss = timed(training.step, training.wait)
    losses = [float(loss), *(float(training.wait(training.step())) for _ in range(STEPS - 1))]
    start = time.perf_counter()
    predict = training.predictor()
    predictor_built = time.perf_counter() - start
    first_prediction, prediction = timed(predict, training.wait)
    report = {
        **_further(training),
        "build": built - (compiled or 0),
        "compile": compiled,
        "first_step": first,
        "predictor": predictor_built,
        "first_prediction": first_prediction,
        "losses": losses,
        "finite": bool(np.isfinite(prediction).all()),
    }
    return report, {"step": (training.step, training.wait), "predict": (predict, training.wait)}


def prepare_leaves(module: Any, counts: str, variant: str) -> Prepared:
    """Build the updates of each of these counts of leaves."""
    report: dict[str, Any] = {"build": {}}
    calls = {}
    for count in map(int, counts.split(",")):
        start = time.perf_counter()
        leaves = module.Leaves(count, variant)
        for name, call in leaves.calls.items():
            leaves.wait(call())
            calls[f"{name}:{count}"] = (call, leaves.wait)
        report["build"][count] = time.perf_counter() - start
    return report, calls


def prepare_updates(module: Any, rule: str, sizes: str, variant: str) -> Prepared:
    """Build a rule's update of each of these sizes, and make the first steps of each."""
    if rule not in module.RULES:
        raise LookupError(f"it has no {rule}")
    report: dict[str, Any] = {"build": {}, "moved": {}}
    calls = {}
    for size in sizes.split(","):
        start = time.perf_counter()
        updates = module.Updates(rule, size, variant)
        before = updates.first()
        for _ in range(STEPS):
            updates.wait(updates.step())
        report["build"][size] = time.perf_counter() - start
        report["moved"][size] = float(np.sqrt(np.mean((updates.first() - before) ** 2)))
        for what, value in _further(updates).items():
            report.setdefault(what, {})[size] = value
        calls[size] = (updates.step, updates.wait)
    return report, calls


def _further(built: Any) -> dict[str, Any]:
    return built.report() if hasattr(built, "report") else {}


def serve(framework: str, task: str, requests: TextIO, answers: TextIO) -> None:
    """Prepare a task, and answer what comes in: ``{"measure": name, "seconds": s}``."""
    chosen = FRAMEWORKS[framework]
    start = time.perf_counter()
    module = importlib.import_module(f"tests.benchmarks.frameworks.{chosen.module}")
    imported = time.perf_counter() - start
    if task.startswith("leaves:"):
        report, calls = prepare_leaves(module, task.removeprefix("leaves:"), chosen.variant)
    elif task.startswith("updates:"):
        _, rule, sizes = task.split(":")
        report, calls = prepare_updates(module, rule, sizes, chosen.variant)
    else:
        report, calls = prepare_training(module, task, chosen.variant)
    _tell(answers, {"import": imported, **report, "peak": peak_bytes(), "calls": list(calls)})
    for line in requests:
        request = json.loads(line)
        measured = measure(*calls[request["measure"]], request["seconds"])
        _tell(answers, {**measured, "peak": peak_bytes()})


def _tell(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def main() -> None:
    """Run the worker that the command line names."""
    # Compilers and libraries print too: that goes where errors go, and the pipe is for our answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        serve(sys.argv[1], sys.argv[2], sys.stdin, answers)
    except Exception as error:
        traceback.print_exc()
        _tell(answers, {"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
