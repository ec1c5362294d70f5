"""Kernels that a backend has itself for fused ops: used where they take a node, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import apply_ancestors
from pytensor.scan.op import Scan

import ptml
from ptml.backends.modes import backend_for
from ptml.backends.native import native
from ptml.fused import Fused


class Doubled(Fused):
    """Twice a vector or a matrix; the kernels of these tests take vectors, and give away that they ran."""

    def build(self, x):
        return [x + x]


class Tripled(Fused):
    """Three times a number, for which no backend has a kernel."""

    def build(self, x):
        return [Doubled()(x) + x]


def _takes_vectors(node):
    return node.inputs[0].type.ndim == 1


def _by_kernel(op, node, **kwargs):
    return lambda x: x + x + 1000


@pytest.fixture
def with_kernel(backend):
    native(backend, Doubled, takes=_takes_vectors)(_by_kernel)
    return backend


@pytest.mark.backends("jax", "mlx", "pytorch")
def test_a_kernel_runs_where_it_takes_a_node_and_the_graph_elsewhere(with_kernel):
    x, y = pt.vector("x", dtype="float32"), pt.matrix("y", dtype="float32")
    run = ptml.function([x, y], [Doubled()(x), Doubled()(y)], backend=with_kernel)
    of_vector, of_matrix = run(np.ones(2, "float32"), np.ones((2, 2), "float32"))
    np.testing.assert_array_equal(of_vector, np.full(2, 1002.0))
    np.testing.assert_array_equal(of_matrix, np.full((2, 2), 2.0))


@pytest.mark.backends("jax", "mlx", "pytorch")
def test_an_op_in_the_graph_of_another_has_its_kernel(with_kernel):
    x = pt.vector("x", dtype="float32")
    run = ptml.function([x], [Tripled()(x)], backend=with_kernel)
    np.testing.assert_array_equal(run(np.ones(3, "float32"))[0], np.full(3, 1003.0))


@pytest.mark.backends("jax", "mlx")
def test_a_kernel_runs_in_loops(with_kernel):
    x = pt.matrix("x", shape=(3, 2), dtype="float32")
    total = ptml.scan(
        lambda row, so_far: so_far + Doubled()(row), sequences=x, outputs_info=pt.zeros(2, dtype="float32")
    )
    run = ptml.function([x], [total[-1]], backend=with_kernel)
    np.testing.assert_array_equal(run(np.ones((3, 2), "float32"))[0], np.full(2, 3006.0))


def test_the_plan_and_pytensors_modes_have_no_part_in_it():
    x = pt.vector("x")
    for mode in (backend_for("numba").mode, "CVM", "NUMBA"):
        run = pytensor.function([x], Doubled()(x), mode=mode)
        np.testing.assert_array_equal(run([1.0, 2.0]), [2.0, 4.0])
        assert not any(isinstance(n.op, Fused | Scan) for n in apply_ancestors(run.maker.fgraph.outputs))


@pytest.mark.backends("jax")
def test_a_mode_may_be_asked_for_before_the_first_fused_op(backend):
    # PyTensor takes no rewrite under a name that a query left out before.
    code = (
        "from ptml.backends.modes import backend_for\n"
        f"backend_for({backend!r}).mode.optimizer\n"
        "from ptml.fused import known_to_pytensor\n"
        "known_to_pytensor()\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
