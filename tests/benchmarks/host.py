"""The host's end of a worker: start it with caches and threads of our choosing, ask, and read answers."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Failed", "Worker", "environment"]

ROOT = Path(__file__).parents[2]


class Failed(RuntimeError):
    """A worker that ended, failed or took too long; the text says which."""


def environment(caches: Path, threads: int) -> dict[str, str]:
    """Give the environment of a worker.

    Parameters
    ----------
    caches : Path
        The folder that everything compiled is kept in.
    threads : int
        How many threads every library may use.
    """
    # A core type for OpenBLAS would change its speed, and JAX's flags that of the peers.
    unwanted = ("OPENBLAS_CORETYPE", "XLA_FLAGS", "PYTHONPROFILEIMPORTTIME")
    result = {name: value for name, value in os.environ.items() if name not in unwanted}
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM"):
        result[f"{library}_NUM_THREADS"] = str(threads)
    result |= {
        # XLA sizes its pool by the first; with one thread, its matrix products need the second as well.
        "NPROC": str(threads),
        "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "PTML_CACHE_DIR": str(caches / "ptml"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
    }
    ours = f"floatX=float32,base_compiledir={caches / 'pytensor'}"
    result["PYTENSOR_FLAGS"] = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), ours]))
    return result


class Worker:
    """A process that prepares one task in one framework, and then measures on demand.

    Parameters
    ----------
    python : str
        The interpreter that has the framework.
    framework, task : str
        As the worker's command line takes them.
    caches, threads
        As for :func:`environment`.
    patience : float
        How many seconds an answer may take.

    Attributes
    ----------
    ready : dict
        What the worker reports of its preparation, and ``total``, the seconds from its start to that report.
    """

    def __init__(
        self, python: str, framework: str, task: str, *, caches: Path, threads: int, patience: float = 600.0
    ) -> None:
        self.patience = patience
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (close() closes it)
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [python, "-m", "tests.benchmarks.worker", framework, task],
            cwd=ROOT,
            env=environment(caches, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.ready["total"] = time.perf_counter() - start

    def measure(self, what: str, seconds: float) -> dict[str, float]:
        """Have one of ``ready["calls"]`` timed for about so many seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"measure": what, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        # One answer to each request, so nothing waits in Python's buffer when the pipe is looked at.
        pipe = self._process.stdout
        assert pipe is not None
        readable, _, _ = select.select([pipe], [], [], self.patience)
        if not readable:
            raise Failed(f"no answer in {self.patience:.0f} s")
        line = pipe.readline()
        if not line:
            raise Failed(f"ended without an answer: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
