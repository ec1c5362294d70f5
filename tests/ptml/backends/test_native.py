"""LLVM modules as machine code: compiled, kept as bytes, loaded again."""

import ctypes
import subprocess
import sys
import threading

import pytest

from ptml.backends.numba.native import compile_module, load_object, optimised_ir, target_description

TWICE = "define i32 @twice(i32 %x) { %y = add i32 %x, %x\n ret i32 %y }"
INTEGER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


@pytest.mark.parametrize("optimise", [True, False])
def test_a_compiled_function_runs(optimise):
    code = compile_module(TWICE, optimise=optimise)
    assert INTEGER(code.address("twice"))(21) == 42


def test_an_object_file_runs_in_another_process(tmp_path):
    path = tmp_path / "twice.o"
    path.write_bytes(compile_module(TWICE).object_bytes)
    script = (
        "import ctypes, pathlib, sys\n"
        "from ptml.backends.numba.native import load_object\n"
        "code = load_object(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "sys.exit(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(code.address('twice'))(21) - 42)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


def test_functions_of_one_name_in_two_modules_are_two():
    first, second = compile_module(TWICE), compile_module(TWICE.replace("add", "mul"))
    assert INTEGER(first.address("twice"))(5) == 10
    assert INTEGER(second.address("twice"))(5) == 25


def test_many_threads_may_compile_at_once():
    results = []

    def work(factor):
        for _ in range(5):
            code = compile_module(f"define i32 @f(i32 %x) {{ %y = mul i32 %x, {factor}\n ret i32 %y }}")
            results.append(INTEGER(code.address("f"))(3) == 3 * factor)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(2, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 25
    assert all(results)


def test_a_declared_symbol_is_found_in_the_process():
    code = compile_module(
        "declare double @cbrt(double)\n"
        "define double @f(double %x) { %y = call double @cbrt(double %x)\n ret double %y }"
    )
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.address("f"))(27.0) == pytest.approx(3.0)


def test_several_addresses_come_in_their_order():
    code = compile_module(TWICE + "\n" + TWICE.replace("twice", "again"))
    assert code.addresses(["again", "twice"]) == [code.address("again"), code.address("twice")]


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="no function 'thrice'"):
        compile_module(TWICE).address("thrice")


def test_a_symbol_that_is_nowhere_fails_by_the_name_of_its_user():
    code = compile_module(
        "declare i32 @nowhere(i32)\ndefine i32 @f() { %y = call i32 @nowhere(i32 1)\n ret i32 %y }"
    )
    with pytest.raises(KeyError, match="no function 'f' that can be linked"):
        code.address("f")


def test_text_that_is_no_module_is_refused_with_llvms_reason():
    with pytest.raises(RuntimeError, match="expected type"):
        compile_module("define foo")


@pytest.mark.parametrize("data", [b"", b"no object file at all", b"\x7fELF" + bytes(100)])
def test_bytes_that_are_no_object_file_are_refused(data):
    with pytest.raises(ValueError, match=f"these {len(data)} bytes are no object file"):
        load_object(data)


def test_the_passes_inline_and_simplify():
    text = "define i32 @f(i32 %x) { %y = mul i32 %x, 0\n ret i32 %y }"
    assert "mul" not in optimised_ir(text)


def test_the_description_names_processor_and_versions():
    description = target_description()
    assert "LLVM" in description
    assert "llvmlite" in description
