"""LLVM modules as machine code in this process: optimise, emit, load, and find the functions' addresses."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from functools import cache

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

__all__ = ["Native", "compile_module", "compiling", "load_object", "optimised_ir", "target_description"]

NO_FUNCTION = (
    "The native module has no function {name!r} that can be linked; give address() the name of one that it "
    "defines. LLVM says: {error}"
)
NOT_AN_OBJECT = (
    "load_object takes the bytes that Native.object_bytes gave on this kind of machine; these {size} bytes "
    "are no object file."
)

# LLVM's global context is shared by every module that is parsed, numba's included. llvmlite guards each
# single call; this lock keeps one module's calls together.
compiling = threading.RLock()
_count = itertools.count()

# How an object file starts that LLVM writes: ELF, on Windows too, and Mach-O in 64 bits.
_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe")


class _Target:
    """The machine's processor, as LLVM describes it, and what emits code for it."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        llvm.check_jit_execution()
        self.triple = llvm.get_process_triple()
        self.cpu = llvm.get_host_cpu_name()
        features = llvm.get_host_cpu_features()
        if features.get("avx512vbmi2"):
            # LLVM keeps to half-width vectors on Intel's processors, of which the first with 512 bits slowed
            # their clock for them. Those since Ice Lake do not, and run our loops a quarter faster.
            features["prefer-256-bit"] = False
        self.features = features.flatten()
        self.machine = self._new_machine()
        self.layout = str(self.machine.target_data)
        # One linker for the process: a library in it loads in a tenth of the time that an engine of its own
        # takes. It frees the machine that it is given, so it gets one to itself.
        self.loader = llvm.create_lljit_compiler(self._new_machine(), suppress_errors=True)

    def _new_machine(self) -> llvm.TargetMachine:
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=3, jit=True)


@cache
def _target() -> _Target:
    with compiling:
        return _Target()


def target_description() -> str:
    """Say which machines can run what is compiled here.

    Returns
    -------
    str
        Triple, processor, its features, and the versions of LLVM and llvmlite: the part of a cache's key
        that keeps another machine's object files out.

    Examples
    --------
    >>> from ptml.backends.numba.native import target_description
    >>> "LLVM" in target_description()
    True
    """
    target = _target()
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"{target.triple} {target.cpu} {target.features} LLVM {version} llvmlite {llvmlite.__version__}"


class Native:
    """Machine code in memory. It stays there while this object lives, and no longer.

    Attributes
    ----------
    object_bytes : bytes
        The object file, for `load_object` in another process on the same kind of machine.
    """

    __slots__ = ("_library", "_name", "_symbols", "object_bytes")

    def __init__(self, object_bytes: bytes) -> None:
        self.object_bytes = object_bytes
        self._symbols: dict[str, llvm.ResourceTracker] = {}
        with compiling:
            self._name = f"ptml{next(_count)}"
            builder = llvm.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
            self._library = builder.link(_target().loader, self._name)

    def address(self, name: str) -> int:
        """Give the address of a function.

        Parameters
        ----------
        name : str
            A function that the module defines, with external linkage.

        Raises
        ------
        KeyError
            If there is no such function, or one that it calls is nowhere in the process.
        """
        if name not in self._symbols:
            with compiling:
                try:
                    self._symbols[name] = _target().loader.lookup(self._name, name)
                except RuntimeError as error:
                    raise KeyError(NO_FUNCTION.format(name=name, error=error)) from error
        return self._symbols[name][name]

    def addresses(self, names: Iterable[str]) -> list[int]:
        """Give the addresses of several functions, in their order."""
        return [self.address(name) for name in names]


def _optimised(module: ir.Module | str, optimise: bool) -> llvm.ModuleRef:
    target = _target()
    parsed = llvm.parse_assembly(str(module))
    parsed.triple = target.triple
    parsed.data_layout = target.layout
    parsed.verify()
    if optimise:
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.slp_vectorization = True
        options.loop_interleaving = True
        options.loop_unrolling = True
        passes = llvm.create_pass_builder(target.machine, options)
        passes.getModulePassManager().run(parsed, passes)
        # Vector forms of functions are called since the loops were vectorized, after LLVM inlined.
        late = llvm.create_new_module_pass_manager()
        late.add_always_inliner_pass()
        late.run(parsed, passes)
    return parsed


def optimised_ir(module: ir.Module | str) -> str:
    """Give a module's text after the passes that `compile_module` runs, to see what became of its loops.

    Parameters
    ----------
    module : llvmlite.ir.Module or str
    """
    with compiling:
        return str(_optimised(module, True))


def compile_module(module: ir.Module | str, *, optimise: bool = True) -> Native:
    """Compile a module for this machine's processor, and load it.

    Any number of threads may call it.

    Parameters
    ----------
    module : llvmlite.ir.Module or str
        The module, or its text. Symbols that it only declares are looked up in the process.
    optimise : bool, default True
        Run LLVM's passes of level 3, with loops vectorized. Without them the code is made in a fraction of
        the time and runs several times as long.

    Returns
    -------
    Native

    Raises
    ------
    RuntimeError
        If LLVM does not accept the module; the message is LLVM's.

    Examples
    --------
    >>> import ctypes
    >>> from ptml.backends.numba.native import compile_module
    >>> native = compile_module("define i32 @twice(i32 %x) { %y = add i32 %x, %x\\n ret i32 %y }")
    >>> ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(native.address("twice"))(21)
    42
    """
    with compiling:
        emitted = _target().machine.emit_object(_optimised(module, optimise))
    return Native(emitted)


def load_object(object_bytes: bytes) -> Native:
    """Load an object file that was compiled before, in this process or another.

    Parameters
    ----------
    object_bytes : bytes
        What `Native.object_bytes` gave where `target_description` is the same. That it is whole is the
        caller's to know: keep a digest with it.

    Raises
    ------
    ValueError
        If the bytes are no object file.

    Examples
    --------
    >>> from ptml.backends.numba.native import compile_module, load_object
    >>> native = compile_module("define i32 @one() { ret i32 1 }")
    >>> load_object(native.object_bytes).address("one") > 0
    True
    """
    if not object_bytes.startswith(_MAGIC):
        raise ValueError(NOT_AN_OBJECT.format(size=len(object_bytes)))
    try:
        return Native(object_bytes)
    except RuntimeError as error:
        raise ValueError(NOT_AN_OBJECT.format(size=len(object_bytes))) from error
