"""Kernels by their source: compiled once in a process, and once on a machine.

A kernel is a function ``i32 kernel(ptr table)``: it finds its operands in a table of words, and gives 0, or
something else where it met an error. What is kept on disk is the object file that LLVM made of it, under a
key of everything that decides about it: the source, the processor, LLVM's version. A file says itself
whether it is whole, and is written beside its place and then moved there; so no kernel is ever stale, foreign
or half written, and a disk that is full or cannot be written only costs the time to compile.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
from pathlib import Path

from ptml.backends.numba.native import Native, compile_module, compiling, load_object, target_description

__all__ = ["KernelCache", "cache_directory", "hold_still", "kernels", "move_again"]

#: Part of every key: change it when kernels of the same source have to be compiled anew.
VERSION = 1

_DIGEST_BYTES = 32


def cache_directory() -> Path | None:
    """Give the folder that keeps kernels, or None where the user wants none kept.

    Returns
    -------
    Path or None
        ``$PTML_CACHE_DIR`` where that is set (none, if it is set to nothing), else ``ptml/kernels`` in the
        user's cache folder.
    """
    given = os.environ.get("PTML_CACHE_DIR")
    if given is not None:
        return Path(given) if given else None
    home = Path.home() if "HOME" in os.environ or os.name == "nt" else Path(tempfile.gettempdir())
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", home))
    elif "XDG_CACHE_HOME" in os.environ:
        base = Path(os.environ["XDG_CACHE_HOME"])
    else:
        base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "ptml" / "kernels"


class KernelCache:
    """The machine code of kernels, by their source.

    Parameters
    ----------
    directory : Path or None
        Where object files are kept; None keeps them in this process alone.

    Attributes
    ----------
    compiled, loaded : int
        How many kernels were compiled, and how many came from disk.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.compiled = 0
        self.loaded = 0
        self._natives: dict[str, Native] = {}
        self.lock = threading.Lock()

    def address(self, source: str, name: str = "kernel") -> int:
        """Give the address of a function of a module.

        Parameters
        ----------
        source : str
            The text of an LLVM module.
        name : str
            The function.
        """
        with self.lock:
            native = self._natives.get(source)
            if native is None:
                native = self._natives[source] = self._load_or_compile(source)
        return native.address(name)

    def _load_or_compile(self, source: str) -> Native:
        path = self._path(source)
        if path is not None and (kept := _read(path)) is not None:
            try:
                native = load_object(kept)
            except (ValueError, RuntimeError):
                pass
            else:
                self.loaded += 1
                return native
        native = compile_module(source)
        self.compiled += 1
        if path is not None:
            _write(path, native.object_bytes)
        return native

    def _path(self, source: str) -> Path | None:
        if self.directory is None:
            return None
        text = f"{VERSION}\n{target_description()}\n{source}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        return self.directory / digest[:2] / f"{digest[2:]}.o"


def _read(path: Path) -> bytes | None:
    """Read an object file, or give None where there is none that is whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, objects = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return objects if hashlib.sha256(objects).digest() == digest else None


def _write(path: Path, objects: bytes) -> None:
    """Write an object file whole or not at all; a disk that cannot take it is no error."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(objects).digest() + objects)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


#: The cache of this process.
kernels = KernelCache(cache_directory())


def hold_still() -> None:
    """Wait until no thread compiles, and let none begin: a process that forks then copies no lock in use."""
    kernels.lock.acquire()
    compiling.acquire()


def move_again() -> None:
    """Let threads compile again."""
    compiling.release()
    kernels.lock.release()
