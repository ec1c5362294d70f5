"""Threads of the plan: the same numbers with any number of them, and nobody waits for ever."""

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.raise_op import Assert

import ptml
from ptml.backends.numba.plan import PLAN
from ptml.backends.numba.plan.runtime.sharing import LARGE, cut_of
from ptml.bits import Draw

pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs run on one thread here")

NUMBERS = (1, 2, 3)
REFERENCE = Mode(linker="py", optimizer="fast_compile")


@pytest.fixture(autouse=True)
def threads():
    before = ptml.get_threads()
    yield
    ptml.set_threads(before)


def compiled(inputs, outputs):
    return pytensor.function(inputs, outputs, mode=PLAN, trust_input=True)


def with_each_number(f, *arguments, repeats=3):
    """Give the results with 1, 2 and 3 threads; each must come out the same every time."""
    results = []
    for n in NUMBERS:
        ptml.set_threads(n)
        first = f(*arguments)
        for _ in range(repeats):
            np.testing.assert_array_equal(f(*arguments), first)
        results.append(first)
    return results


def array(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


x, y = pt.fmatrices("x", "y")
row = pt.fvector("row")

ELEMENTWISE = {
    "flat": (lambda: pt.tanh(x) * y, (777, 519)),
    "broadcast": (lambda: pt.maximum(x + row, 0) * y + 1, (333, 1001)),
    "few long rows": (lambda: pt.exp(x) + pt.sqrt(abs(y)), (3, 200_003)),
    "many short rows": (lambda: pt.exp(x) * y + row, (200_001, 3)),
    "transposed": (lambda: pt.tanh(x.T) + y.T, (511, 803)),
    "strided": (lambda: pt.tanh(x[::2, ::-1]) + y[1::2], (800, 801)),
    "reduced along rows": (lambda: pt.exp(x - y).sum(1), (513, 901)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work_gives_the_same_bits_with_any_number_of_threads(name):
    make, shape = ELEMENTWISE[name]
    f = pytensor.function([x, y, row], make(), mode=PLAN, on_unused_input="ignore", trust_input=True)
    arguments = array(*shape), array(*shape, seed=1), array(shape[1], seed=2)
    one, two, three = with_each_number(f, *arguments)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)
    wanted = pytensor.function(
        [x, y, row], make(), mode=REFERENCE, on_unused_input="ignore", trust_input=True
    )
    np.testing.assert_allclose(one, wanted(*arguments), rtol=2e-4, atol=1e-5)


REDUCTIONS = {
    "all": lambda: (x * y).sum(),
    "along columns": lambda: (x * y).sum(0),
    "along rows": lambda: (x * y).sum(1),
    "the largest": lambda: pt.maximum(x, y).max(0),
    "the least of all": lambda: pt.minimum(x, y).min(),
    "any": lambda: pt.any(x > y + 8, axis=0),
    "in float64": lambda: (x * y).sum(0, acc_dtype="float64"),
}


@pytest.mark.parametrize("shape", [(1031, 517), (200_000, 3), (5, 150_001)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_give_the_same_bits_with_any_number_of_threads(name, shape):
    f = compiled([x, y], REDUCTIONS[name]())
    a, b = array(*shape), array(*shape, seed=1)
    one, two, three = with_each_number(f, a, b, repeats=2)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)
    wide = pytensor.function([x, y], REDUCTIONS[name](), mode=REFERENCE, trust_input=True)
    np.testing.assert_allclose(one, wide(a, b), rtol=1e-3, atol=2e-2)


def test_a_result_and_its_reductions_are_computed_together():
    out = pt.exp(-x * y)
    f = compiled([x, y], [out, out.sum(0), out.sum()])
    a, b = abs(array(1000, 600)), abs(array(1000, 600, seed=1))
    for n in NUMBERS:
        ptml.set_threads(n)
        full, columns, total = f(a, b)
        wanted = np.exp(-a.astype("float64") * b)
        np.testing.assert_allclose(full, wanted, rtol=1e-5)
        np.testing.assert_allclose(columns, wanted.sum(0), rtol=1e-5)
        np.testing.assert_allclose(total, wanted.sum(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["uint32", "float32", "float64"])
@pytest.mark.parametrize("n", [70_000, 131_071])
def test_draws_give_the_same_numbers_with_any_number_of_threads(dtype, n):
    leaf, number = pt.vector("leaf", shape=(4,), dtype="uint32"), pt.scalar("number", dtype="uint32")
    draw = Draw(dtype)
    key = np.array([1, 2, 3, 4], "uint32"), np.array(7, "uint32")
    f = compiled([leaf, number], draw(leaf, number, n))
    wanted = pytensor.function([leaf, number], draw(leaf, number, n), mode=REFERENCE)(*key)
    for drawn in with_each_number(f, *key):
        np.testing.assert_array_equal(drawn, wanted)


A, B = pt.tensor3("A", dtype="float32"), pt.tensor3("B", dtype="float32")

PRODUCTS = {
    "wide": (lambda: x @ y, (100, 300), (300, 700)),
    "tall": (lambda: x @ y, (900, 200), (200, 70)),
    "of a transpose": (lambda: x.T @ y, (300, 500), (300, 90)),
    "with a transpose": (lambda: x @ y.T, (300, 500), (410, 500)),
    "of two transposes": (lambda: x.T @ y.T, (300, 500), (410, 300)),
    "of a copy": (lambda: x[::2, ::2] @ y, (800, 600), (300, 330)),
    "of many": (lambda: A @ B, (37, 80, 60), (37, 60, 90)),
    "of many small ones": (lambda: A @ B, (301, 32, 60), (301, 60, 20)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_right_with_any_number_of_threads(name):
    make, left, right = PRODUCTS[name]
    product = make()
    f = compiled([x, y] if len(left) == 2 else [A, B], product)
    a, b = array(*left), array(*right, seed=1)
    wanted = pytensor.function(
        [x, y] if len(left) == 2 else [A, B], product, mode=REFERENCE, trust_input=True
    )(a, b)
    for result in with_each_number(f, a, b):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-3)


def test_blas_keeps_the_number_of_threads_that_it_had():
    blas = pytest.importorskip("threadpoolctl")
    from scipy.linalg import cython_blas  # noqa: F401

    def numbers():
        return [library["num_threads"] for library in blas.threadpool_info()]

    f = compiled([x, y], x @ y)
    a, b = array(400, 300), array(300, 500)
    before = numbers()
    for n in NUMBERS:
        ptml.set_threads(n)
        callers = [threading.Thread(target=lambda: [f.copy()(a, b) for _ in range(5)]) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert numbers() == before


def test_training_takes_the_same_steps_with_any_number_of_threads():
    w = pytensor.shared(array(300, 700), "w")
    loss = ((pt.tanh(x @ w) - y) ** 2).mean()
    new = (w - 0.1 * pytensor.grad(loss, w)).astype("float32")
    step = pytensor.function([x, y], loss, updates={w: new}, mode=PLAN, trust_input=True)
    a, b, start = array(200, 300), array(200, 700, seed=1), w.get_value()
    ended = []
    for n in NUMBERS:
        ptml.set_threads(n)
        w.set_value(start)
        for _ in range(5):
            step(a, b)
        ended.append(w.get_value())
    np.testing.assert_allclose(ended[1], ended[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ended[2], ended[0], rtol=1e-4, atol=1e-5)
    assert not np.array_equal(ended[0], start)


def count_threads():
    return len(os.listdir("/proc/self/task"))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")


@needs_proc
def test_the_number_changes_between_calls_and_workers_start_with_the_first_large_work():
    f, a = compiled([x], pt.tanh(x)), array(700, 700)
    ptml.set_threads(1)
    f(a)
    alone = count_threads()
    for n in (3, 2, 1, 2):
        ptml.set_threads(n)
        assert count_threads() == alone
        f(a[:20, :20].copy())
        assert count_threads() == alone
        f(a)
        assert count_threads() == alone + n - 1


def test_a_program_with_small_work_alone_has_no_shared_kernels():
    assert cut_of(pytensor.scalar.add, 3, (100, 100), ()) is None
    assert cut_of(pytensor.scalar.add, 3, (LARGE,), ()) is not None


def child(f, a, wanted, answer):
    ptml.set_threads(2)
    answer.put(bool(np.array_equal(f(a), wanted)))


@contextlib.contextmanager
def forking():
    """Let be what Python and JAX say of forks in a process where other tests' libraries have threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_forked_child_starts_workers_of_its_own(n):
    f, a = compiled([x], pt.tanh(x) @ x.T), array(600, 700)
    ptml.set_threads(n)
    wanted = f(a)
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    with forking():
        process = context.Process(target=child, args=(f, a, wanted, answer))
        process.start()
    process.join(60)
    assert process.exitcode == 0
    assert answer.get()
    np.testing.assert_array_equal(f(a), wanted)


def test_forking_while_another_thread_computes_leaves_both_able_to_go_on():
    f, a = compiled([x], pt.tanh(x) @ x.T), array(600, 700)
    ptml.set_threads(2)
    wanted = f(a)
    stop = threading.Event()

    def compute():
        mine = f.copy()
        while not stop.is_set():
            mine(a)

    busy = threading.Thread(target=compute)
    busy.start()
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    try:
        for _ in range(4):
            with forking():
                process = context.Process(target=child, args=(f, a, wanted, answer))
                process.start()
            process.join(60)
            assert process.exitcode == 0
            assert answer.get()
    finally:
        stop.set()
        busy.join()
    np.testing.assert_array_equal(f(a), wanted)


def test_several_callers_at_once_all_get_their_results():
    f = compiled([x], [pt.tanh(x) * 2, x.sum(0), x @ x.T])
    ptml.set_threads(2)
    inputs = [array(500, 600, seed=k) for k in range(4)]
    wanted = [f(a) for a in inputs]
    programs = [f.copy() for _ in inputs]
    wrong = []

    def compute(program, a, expected):
        for _ in range(20):
            for got, want in zip(program(a), expected, strict=True):
                if not np.array_equal(got, want):
                    wrong.append(got)

    callers = [
        threading.Thread(target=compute, args=each) for each in zip(programs, inputs, wanted, strict=True)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_an_error_after_shared_work_leaves_the_state_as_it_was():
    state = pytensor.shared(array(700, 700), "state")
    doubled = pt.tanh(state) + x
    checked = Assert("the sum is too large")(doubled, pt.lt(doubled.sum(), 0.0))
    step = pytensor.function([x], checked.sum(), updates={state: state * 0.5}, mode=PLAN, trust_input=True)
    before = state.get_value()
    ptml.set_threads(2)
    with pytest.raises(AssertionError, match="the sum is too large"):
        step(np.ones((700, 700), "float32"))
    np.testing.assert_array_equal(state.get_value(), before)
    step(-np.ones((700, 700), "float32"))
    np.testing.assert_array_equal(state.get_value(), before * np.float32(0.5))


def test_an_error_in_one_part_of_shared_work_is_the_works():
    import ctypes

    from ptml.backends.numba.plan.runtime.cache import kernels
    from ptml.backends.numba.plan.runtime.pool import Share, shared

    # Gives an error where the part that begins at the word has 77 in it.
    source = """
define i32 @kernel(ptr %table) {
  %first = load i64, ptr %table
  %count_at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count_at
  %end = add i64 %first, %count
  %from = icmp sle i64 %first, 77
  %to = icmp sgt i64 %end, 77
  %in = and i1 %from, %to
  %code = zext i1 %in to i32
  ret i32 %code
}
"""
    for size, code in ((100, 1), (70, 0)):
        address, words = shared(kernels.address(source), [0, size], Share(1, size, {0: 1}))
        table = np.array(words, np.uint64)
        run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
        for n in NUMBERS:
            ptml.set_threads(n)
            for _ in range(10):
                assert run(table.ctypes.data) == code


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (0, ValueError, "got 0. Write set_threads(1)"),
        (-3, ValueError, "got -3. Write set_threads(1)"),
        (1000, ValueError, "got 1000. Write set_threads(256)"),
        ("2", TypeError, "got '2'. Write set_threads(2)"),
        ("all", TypeError, "got 'all'. Write set_threads(2)"),
        (2.0, TypeError, "got 2.0. Write set_threads(2)"),
        (True, TypeError, "got True. Write set_threads(2)"),
        (None, TypeError, "got None. Write set_threads(2)"),
    ],
)
def test_what_is_no_number_of_threads_is_answered_with_what_to_write(given, error, message):
    before = ptml.get_threads()
    with pytest.raises(error, match=re.escape(message)):
        ptml.set_threads(given)
    assert ptml.get_threads() == before


def in_a_new_process(**variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("PTML_NUM_THREADS", "OMP_NUM_THREADS")}
    return subprocess.run(
        [sys.executable, "-c", "import ptml; print(ptml.get_threads())"],
        env={**environment, **variables},
        capture_output=True,
        text=True,
    )


def test_the_environment_decides_until_a_number_is_set():
    cores = os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))
    assert in_a_new_process().stdout.strip() == str(min(cores, 256))
    assert in_a_new_process(OMP_NUM_THREADS="3").stdout.strip() == "3"
    assert in_a_new_process(OMP_NUM_THREADS="3", PTML_NUM_THREADS="5").stdout.strip() == "5"
    failed = in_a_new_process(PTML_NUM_THREADS="many")
    assert "PTML_NUM_THREADS is 'many'. Set it to a whole number" in failed.stderr
