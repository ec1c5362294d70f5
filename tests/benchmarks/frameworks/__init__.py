"""The frameworks that are measured, by name, and how each is written.

A framework's module is imported in a worker alone, so that its import is timed and nothing else is loaded.
It offers ``Training(workload, variant)`` and, for some, ``Leaves(count, variant)`` and ``Updates(rule, size,
variant)``, which are described in :mod:`tests.benchmarks.worker`. Its networks are in a module beside it, a
function for each kind of workload.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "Framework"]


@dataclass(frozen=True)
class Framework:
    """One row of the tables.

    Parameters
    ----------
    module : str
        The module in this folder.
    variant : str
        What the module is told.
    needs : tuple of str
        The packages without which it is left out.
    peer : bool
        Whether it is one of those that ptml is compared with.
    default : bool
        Whether it is measured unless asked for by name.
    leaves : bool
        Whether the overhead of calls is measured.
    updates : bool
        Whether updates alone are measured, unless frameworks are asked for by name.
    """

    module: str
    variant: str
    needs: tuple[str, ...] = ()
    peer: bool = False
    default: bool = True
    leaves: bool = True
    updates: bool = False


FRAMEWORKS = {
    "ptml-numba": Framework("with_ptml", "numba", ("ptml", "pytensor", "numba"), updates=True),
    "ptml-c": Framework("with_ptml", "c", ("ptml", "pytensor")),
    "ptml-jax": Framework("with_ptml", "jax", ("ptml", "pytensor", "jax")),
    # Its matrix products are slow on anything but Apple's machines.
    "ptml-mlx": Framework("with_ptml", "mlx", ("ptml", "pytensor", "mlx"), default=False),
    "jax-optax": Framework("with_jax", "raw", ("jax", "optax"), peer=True, updates=True),
    "jax-equinox": Framework("with_equinox", "filter_jit", ("jax", "optax", "equinox"), peer=True),
    # What ptml grew out of. PyTensor takes minutes to compile some workloads from empty caches.
    "pytensor-ml-numba": Framework(
        "with_pytensor_ml", "NUMBA", ("pytensor_ml", "pytensor", "numba"), peer=True, leaves=False
    ),
    "pytensor-ml-jax": Framework(
        "with_pytensor_ml", "JAX", ("pytensor_ml", "pytensor", "jax"), peer=True, leaves=False
    ),
    "torch-eager": Framework("with_torch", "eager", ("torch",), peer=True, updates=True),
}
