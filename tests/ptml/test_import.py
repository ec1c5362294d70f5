"""Importing ptml: no backend before it compiles, and nothing of it at all for another one."""

from __future__ import annotations

import subprocess
import sys

BACKENDS = ("numba", "llvmlite", "jax", "mlx", "torch")


def loaded_after(code: str) -> set[str]:
    show = f"import sys; print(*(name for name in {BACKENDS!r} if name in sys.modules))"
    child = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return set(child.stdout.split())


def test_importing_ptml_and_building_a_network_loads_no_backend():
    code = """
import ptml, ptml_state
import ptml.activations, ptml.data, ptml.layers, ptml.loss, ptml.optim, ptml.random
from ptml.layers import Input, Linear
from ptml.loss import SquaredError, supervised_loss
loss, _ = supervised_loss(Linear("fc", n_in=2, n_out=1)(Input("X", (None, 2))), SquaredError())
"""
    assert loaded_after(code) == set()


def test_compiling_for_numba_loads_llvm_and_not_numba():
    code = """
import ptml
from ptml.layers import Input
X = Input("X", (None, 2))
ptml.function([X], X.sum(), backend="numba")([[1.0, 2.0]])
"""
    assert loaded_after(code) == {"llvmlite"}


def test_compiling_for_c_loads_no_backend():
    code = """
import ptml
from ptml.layers import Input
X = Input("X", (None, 2))
ptml.function([X], X.sum(), mode="FAST_COMPILE")([[1.0, 2.0]])
"""
    assert loaded_after(code) == set()
