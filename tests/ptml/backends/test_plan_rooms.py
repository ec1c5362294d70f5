"""The rooms of the plan, each by itself: cache, memory, BLAS operands, cells, the size of tables."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.backends.numba.plan import PLAN
from ptml.backends.numba.plan.memory import Pool, address_of
from ptml.backends.numba.plan.runtime.blas import Operand, routine
from ptml.backends.numba.plan.runtime.cache import KernelCache, cache_directory
from ptml.backends.numba.plan.runtime.executor import DONE, Cells, runner

ANSWER = "define i32 @kernel(ptr %table) {\n  ret i32 42\n}\n"


def called(address):
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)(None)


def test_a_kernel_is_compiled_once_and_comes_from_disk_in_the_next_process(tmp_path):
    first = KernelCache(tmp_path)
    assert called(first.address(ANSWER)) == called(first.address(ANSWER)) == 42
    assert (first.compiled, first.loaded) == (1, 0)
    second = KernelCache(tmp_path)
    assert called(second.address(ANSWER)) == 42
    assert (second.compiled, second.loaded) == (0, 1)
    assert not list(tmp_path.rglob("*.part"))


def test_another_source_is_another_kernel(tmp_path):
    cache = KernelCache(tmp_path)
    cache.address(ANSWER)
    assert called(cache.address(ANSWER.replace("42", "43"))) == 43
    assert len(list(tmp_path.rglob("*.o"))) == 2


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_corrupt_kernel_is_compiled_again(tmp_path, damage):
    KernelCache(tmp_path).address(ANSWER)
    (file,) = tmp_path.rglob("*.o")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    cache = KernelCache(tmp_path)
    assert called(cache.address(ANSWER)) == 42
    assert (cache.compiled, cache.loaded) == (1, 0)
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    cache = KernelCache(blocked)
    assert called(cache.address(ANSWER)) == 42
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert called(KernelCache(locked).address(ANSWER)) == 42
    finally:
        locked.chmod(stat.S_IRWXU)


def test_the_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("PTML_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.setenv("PTML_CACHE_DIR", "")
    assert cache_directory() is None
    monkeypatch.delenv("PTML_CACHE_DIR")
    assert cache_directory().name == "kernels"


def test_processes_at_once_share_a_cache(tmp_path):
    code = (
        "import numpy as np, pytensor, pytensor.tensor as pt;"
        "from ptml.backends.numba.plan import PLAN;"
        "x = pt.matrix(); f = pytensor.function([x], pt.exp(x).sum(0), mode=PLAN);"
        "assert f(np.zeros((2, 2), x.dtype)).tolist() == [2, 2]"
    )
    environment = {**os.environ, "PTML_CACHE_DIR": str(tmp_path)}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    assert list(tmp_path.rglob("*.o"))


def test_blocks_are_aligned_and_used_again():
    pool = Pool()
    first = pool.take(100)
    assert address_of(first.memory) % 64 == 0
    assert first.nbytes == 128
    pool.give_back(first)
    assert pool.take(70) is first
    assert pool.take(70) is not first
    large = pool.take(10_000)
    pool.give_back(large)
    assert pool.take(100) is not large


@pytest.mark.parametrize(
    ("matrix", "transposed", "lead"),
    [
        (np.zeros((3, 4)), False, 4),
        (np.zeros((3, 4)).T, True, 4),
        (np.zeros((3, 8))[:, :4], False, 8),
        (np.zeros((3, 8))[::2, :4], False, 16),
        (np.zeros((1, 4)), False, 4),
        (np.zeros((4, 1)), False, 1),
        (np.zeros((8, 4))[:, 1:2], False, 4),
    ],
)
def test_matrices_that_blas_reads_as_they_lie(matrix, transposed, lead):
    operand = Operand.of(matrix)
    assert (operand.transposed, operand.lead) == (transposed, lead)


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((3, 8))[:, ::2], np.zeros((3, 4))[::-1], np.broadcast_to(np.zeros(4), (3, 4))],
)
def test_matrices_that_blas_cannot_read(matrix):
    assert Operand.of(matrix) is None


def test_a_routine_that_blas_lacks_is_named():
    with pytest.raises(ImportError, match="no 'nogemm'"):
        routine("nogemm")


def test_an_empty_frame_runs():
    frame = np.zeros(6, np.uint64)
    assert runner()(frame.ctypes.data) == DONE


def test_cells_tell_when_another_array_was_put_in_one():
    storages = [[np.zeros(2)], [np.ones(2)]]
    cells = Cells(storages)
    cells.look()
    assert cells.unchanged()
    storages[1][0][:] = 5
    assert cells.unchanged()
    storages[1][0] = np.full(2, 5.0)
    assert not cells.unchanged()
    cells.look()
    assert cells.unchanged()
    assert Cells([]).unchanged()


def test_memory_does_not_grow_with_depth():
    x = pt.vector("x", dtype="float64")
    y = x
    for _ in range(20):
        y = pt.tanh(y[::-1] + y)
    f = pytensor.function([x], y, mode=PLAN.excluding("fusion"))
    f(np.ones(1000))
    (table,) = f.vm.tables.values()
    assert 8000 < table.planned_bytes < 4 * 8100


def test_a_deeper_network_has_no_more_kernels_to_compile():
    def distinct(depth):
        x = pt.matrix("x", dtype="float64")
        y = x
        for k in range(depth):
            y = pt.maximum(y @ pytensor.shared(np.ones((4, 4)), name=f"w{k}"), 0)
        f = pytensor.function([x], y.sum(), mode=PLAN)
        f(np.ones((2, 4)))
        (table,) = f.vm.tables.values()
        return len(set(table._kernels)), table.n_kernels

    few, many = distinct(3), distinct(12)
    assert few[0] == many[0]
    assert few[1] < many[1]
