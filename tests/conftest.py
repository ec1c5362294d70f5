"""What every test shares: a quiet environment, and the ``backend``, ``float32`` and ``float64`` fixtures.

A test that takes ``backend`` runs once on each of the five; ``@pytest.mark.backends("numba", "jax")``
names the ones it is for. A backend whose library is missing is skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import os

# Read by the libraries when they are first imported, so set before anything imports them. Test workers
# share the cores: one thread each is faster than two that wait for each other.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Whatever the person who runs the tests prefers: they are written for PyTensor's own default. What the C
# backend compiles for them runs a few times, and takes longer to optimize than to run.
_flags = [os.environ.get("PYTENSOR_FLAGS"), "floatX=float64", "gcc__cxxflags=-O0"]
os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, _flags))

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytensor
import pytest

# Examples are the same at every run, and may compile.
hypothesis.settings.register_profile("ptml", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ptml")

#: Each backend, with the library that it needs and the extra that installs it.
BACKENDS = {
    "numba": ("numba", None),
    "c": (None, None),
    "jax": ("jax", "jax"),
    "mlx": ("mlx", "mlx"),
    "pytorch": ("torch", "torch"),
}


def missing(backend: str) -> str | None:
    """Say why a backend cannot run here, or give None where it can.

    Parameters
    ----------
    backend : str
        One of ``BACKENDS``.
    """
    library, extra = BACKENDS[backend]
    if backend == "c" and not pytensor.config.cxx:
        return "the C backend needs a C++ compiler, and PyTensor finds none"
    if library is not None and importlib.util.find_spec(library) is None:
        return f"{library} is not installed: pip install 'ptml[{extra}]'"
    return None


def backends(*names: str) -> list:
    """Give one test parameter a backend, skipped with its reason where the backend cannot run.

    Parameters
    ----------
    *names : str
        Backends, in order. All five where none is named.
    """
    unknown = set(names) - set(BACKENDS)
    if unknown:
        raise pytest.UsageError(f"No such backend: {sorted(unknown)}. There are {list(BACKENDS)}.")
    parameters = []
    for name in names or BACKENDS:
        reason = missing(name)
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        parameters.append(pytest.param(name, marks=marks, id=name))
    return parameters


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``backend`` and does not parametrize it by itself on its backends."""
    if "backend" not in metafunc.fixturenames:
        return
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if any("backend" in ([n.strip() for n in g.split(",")] if isinstance(g, str) else g) for g in given):
        return
    mark = metafunc.definition.get_closest_marker("backends")
    metafunc.parametrize("backend", backends(*(mark.args if mark else ())))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave scripts beside the tests alone: collecting doctests would import them."""
    if collection_path.suffix == ".py" and not collection_path.name.startswith("test_"):
        return True
    return None


@pytest.fixture(scope="session", autouse=True)
def jax_as_pytensor_finds_it() -> None:
    """Load PyTensor's JAX rules at the default floatX, which decides for the process if JAX has 64 bits."""
    if importlib.util.find_spec("jax") is not None:
        importlib.import_module("pytensor.link.jax.dispatch")


@pytest.fixture
def float32() -> Iterator[str]:
    """Build the test's graphs in float32."""
    with pytensor.config.change_flags(floatX="float32"):
        yield "float32"


@pytest.fixture
def float64() -> Iterator[str]:
    """Build the test's graphs in float64, and say so."""
    with pytensor.config.change_flags(floatX="float64"):
        yield "float64"


@pytest.fixture
def config_restored() -> Iterator[None]:
    """Put every PyTensor setting back to what it was before the test."""
    settings = pytensor.config._config_var_dict
    # Settings that nobody has read yet have no value, and reading some of them is slow.
    before = {name: setting.val for name, setting in settings.items() if hasattr(setting, "val")}
    yield
    for name, value in before.items():
        if settings[name].val != value:
            setattr(pytensor.config, name, value)
