"""The backends by name: the PyTensor mode of each, and the arrays that it keeps its cells in."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import numpy as np
from pytensor.compile.mode import Mode, get_mode
from pytensor.configdefaults import config
from pytensor.graph.basic import Variable
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.mlx.linker import MLXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.pytorch.linker import PytorchLinker

__all__ = ["KNOWN", "Backend", "backend_for"]

UNKNOWN = (
    "backend is one of {known}; got {given!r}. For any other PyTensor mode write "
    "compile_kwargs={{'mode': ...}}."
)
NOT_INSTALLED = "The {name!r} backend needs the package {package!r}: pip install 'ptml[{package}]'."
TWO_MODES = "Give backend={backend!r} or compile_kwargs={{'mode': ...}}, not both."
MLX_FLOAT64 = (
    "MLX has no float64 on Apple's GPUs, and {what} is float64. Build the network with "
    "pytensor.config.floatX = 'float32' and float32 inputs, or use another backend."
)


@attrs.frozen
class Backend:
    """Where a program runs.

    Attributes
    ----------
    name : str
    mode : Mode
        How PyTensor compiles for it.
    residence : str
        The arrays that its cells hold.
    dispatch : str or None
        Whose of PyTensor's conversions it compiles by, for which our ops have kernels.
    """

    name: str
    mode: Mode = attrs.field(repr=False, eq=False)
    residence: str = "numpy"
    dispatch: str | None = None

    @property
    def raises(self) -> bool:
        """Whether an op can raise when it runs."""
        return self.name not in ("jax", "mlx")

    def context(self) -> AbstractContextManager[Any]:
        """Give what compiling and calling happens within: JAX keeps 64-bit numbers only where told to."""
        if self.name == "jax":
            import jax

            return jax.enable_x64(True)
        return nullcontext()

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function whose calls happen within the backend's context."""
        if self.name != "jax":
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.context():
                return function(*args, **kwargs)

        return call

    @property
    def resident(self) -> Callable[[np.ndarray], Any]:
        """The function that makes a numpy array one of the backend's own."""
        if self.residence == "jax":
            import jax.numpy as jnp

            return jnp.asarray
        if self.residence == "mlx":
            import mlx.core as mx

            return mx.array
        return np.asarray

    def load(self) -> None:
        """Load the kernels of our own ops."""
        if self.dispatch is not None:
            importlib.import_module(f"ptml.backends.{self.dispatch}").load()

    def condensed(self, new_values: list[Variable], others: list[Variable]) -> list[Variable]:
        """Give new values of state in a form that takes less time to compile.

        Parameters
        ----------
        new_values : list of Variable
        others : list of Variable
            What the program computes besides.
        """
        if self.name != "numba" or self.dispatch is not None:
            return new_values
        from ptml.backends.numba.plan.condense import condensed
        from ptml.backends.numba.plan.linker import QUERY

        return condensed(new_values, others, QUERY.excluding("fusion"))

    def check(self, graph: list[Variable]) -> None:
        """Refuse what the backend would compute wrongly or not at all.

        Parameters
        ----------
        graph : list of Variable
            The inputs, slots and outputs of the program.
        """
        if self.name == "mlx":
            for variable in graph:
                if getattr(variable.type, "dtype", None) == "float64":
                    raise TypeError(MLX_FLOAT64.format(what=variable.name or variable))


#: The backends, each with the package that it needs.
KNOWN = {"numba": "numba", "c": None, "jax": "jax", "mlx": "mlx", "pytorch": "torch"}
_RESIDENCES = {"jax": "jax", "mlx": "mlx"}
_LINKERS = {NumbaLinker: "numba", JAXLinker: "jax", MLXLinker: "mlx", PytorchLinker: "pytorch"}


def _mode_named(name: str) -> Mode:
    if name == "numba":
        from ptml.backends.numba.plan import PLAN

        return PLAN
    if name == "mlx":
        from ptml.backends.mlx.linker import MLX

        return MLX
    if name == "jax":
        from ptml.backends.jax.mode import JAX

        return JAX
    if name == "c":
        # Matrix products run in NumPy's BLAS: a PyTensor from pip is linked with none, and warns of it. Its
        # sparse rewrites, which ask for a BLAS too, have to be there to be left out.
        importlib.import_module("pytensor.sparse.rewriting")
        # Nothing is computed in place of the state: a call that raises half-way would have changed some of it
        # already.
        return get_mode("CVM").excluding("BlasOpt", "c_blas", "local_usmm", "inplace")
    from ptml.backends.pytorch.mode import PYTORCH

    return PYTORCH


def backend_for(name: str | None, mode: Any = None) -> Backend:
    """Find the backend of a name, or of a PyTensor mode.

    Parameters
    ----------
    name : {"numba", "c", "jax", "mlx", "pytorch"}, optional
        PyTensor's default mode decides unless given.
    mode : str or Mode, optional
        Any PyTensor mode instead.

    Raises
    ------
    ValueError
        If there is no such backend, or both are given.
    ImportError
        If the backend's package is not installed.
    """
    if name is not None:
        if mode is not None:
            raise ValueError(TWO_MODES.format(backend=name))
        if name not in KNOWN:
            raise ValueError(UNKNOWN.format(known=", ".join(map(repr, KNOWN)), given=name))
        package = KNOWN[name]
        if package is not None and importlib.util.find_spec(package) is None:
            raise ImportError(NOT_INSTALLED.format(name=name, package=package))
        dispatch = name if name in _RESIDENCES or name == "pytorch" else None
        return Backend(name, _mode_named(name), _RESIDENCES.get(name, "numpy"), dispatch)
    by_default, mode = mode is None, get_mode(mode)
    found = next((name for linker, name in _LINKERS.items() if isinstance(mode.linker, linker)), None)
    if found is None:
        return Backend(_name_of_own(mode.linker), mode)
    if by_default and config.optimizer in ("o4", "fast_run"):
        return backend_for(found)
    return Backend(found, mode, _RESIDENCES.get(found, "numpy"), dispatch=found)


def _name_of_own(linker: Any) -> str:
    """Name the backend of a linker that needs none of PyTensor's conversions."""
    plan = sys.modules.get("ptml.backends.numba.plan")
    return "numba" if plan is not None and isinstance(linker, plan.PlanLinker) else "c"
