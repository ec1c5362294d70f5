"""The rules of the house: who imports whom, what an import may change, what is named and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ptml_state", "ptml")

#: Libraries that are loaded by the program that needs them, not by an import of ours.
LOADED_LATE = (
    "jax",
    "jaxlib",
    "mlx",
    "torch",
    "numba",
    "llvmlite",
    "matplotlib",
    "rich",
    "sklearn",
    "IPython",
)

#: What may import the compile step, besides the front door: ``compile_train``, loops, what writes programs.
MAY_COMPILE = (
    "ptml.compile",
    "ptml.checking",
    "ptml.ensembles",
    "ptml.generation",
    "ptml.graphs.encode",
    "ptml.optim.train",
    "ptml.sklearn",
    "ptml.training",
)

_PATHS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


def _imports(path: Path) -> set[str]:
    """Give the dotted names that a file imports, at its top or anywhere inside."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _public(name: str) -> bool:
    """Say whether a module is for users: kernels, and what is named with an underscore, are not."""
    return not _under(name, "ptml.backends") and not any(part.startswith("_") for part in name.split("."))


@pytest.mark.parametrize("name", [n for n in _PATHS if _under(n, "ptml_state")])
def test_ptml_state_does_not_know_ptml(name):
    assert not [imported for imported in _imports(_PATHS[name]) if _under(imported, "ptml")]


@pytest.mark.parametrize(
    "name", [n for n in _PATHS if n != "ptml" and not any(_under(n, room) for room in MAY_COMPILE)]
)
def test_only_the_front_door_imports_the_compile_step(name):
    assert not [imported for imported in _imports(_PATHS[name]) if _under(imported, "ptml.compile")]


@pytest.mark.parametrize("name", _PATHS)
def test_a_file_is_one_idea(name):
    lines = len(_PATHS[name].read_text("utf-8").splitlines())
    assert lines < 500, f"{name} has {lines} lines: past 500 it is two ideas"


@pytest.mark.parametrize("name", [n for n, path in _PATHS.items() if path.name == "__init__.py"])
def test_the_init_of_a_folder_hands_names_on_and_does_nothing_else(name):
    others = []
    for node in ast.parse(_PATHS[name].read_text("utf-8")).body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                pass
            case ast.AnnAssign(target=ast.Name(id="__all__" | "__version__")):
                pass
            case _:
                others.append(ast.unparse(node))
    assert others == []


@pytest.mark.parametrize("name", [n for n in _PATHS if _public(n)])
def test_a_module_says_what_it_is_and_lists_what_it_offers(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__), f"{name}.__all__ names something twice"
    assert [n for n in module.__all__ if not hasattr(module, n)] == []


@pytest.mark.parametrize("name", [n for n in _PATHS if _public(n)])
def test_every_public_name_is_documented(name):
    module = importlib.import_module(name)
    bare = []
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        # A class has a docstring of its own: an inherited one tells of another class.
        documented = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
        if not (documented or "").strip():
            bare.append(public)
    assert bare == []


# Run by a fresh interpreter: prints, as JSON, what importing ours loads and changes.
_PROBE = """
import importlib, json, sys, warnings
import pytensor, pytensor.tensor
from pytensor.compile.mode import optdb, predefined_linkers, predefined_modes
from pytensor.graph.rewriting.db import RewriteDatabase

preload, packages, libraries = json.loads(sys.argv[1])
warnings.simplefilter("ignore")  # reading PyTensor's BLAS setting warns where there is no BLAS

def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules} & set(libraries))

def settings():
    return {name: repr(getattr(pytensor.config, name)) for name in pytensor.config._config_var_dict}

def rewrites(db, path, found):
    found[path] = sorted(map(str, db.__db__))
    for name in sorted(db._names):
        for entry in db.__db__[name]:
            if isinstance(entry, RewriteDatabase) and f"{path}/{name}" not in found:
                rewrites(entry, f"{path}/{name}", found)
    return found

def name_of(thing):
    return f"{thing.__module__}.{getattr(thing, '__qualname__', type(thing).__name__)}"

def registries():
    # A single-dispatch function of PyTensor's may learn of our own classes, and of no others.
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != "pytensor":
            continue
        for value in vars(module).values():
            if callable(getattr(value, "dispatch", None)) and hasattr(value, "registry"):
                found[name_of(value)] = {
                    name_of(kind): name_of(rule)
                    for kind, rule in value.registry.items()
                    if kind.__module__.partition(".")[0] not in ("ptml", "ptml_state")
                }
    return found

def look():
    return {
        "settings": settings(),
        "rewrites": rewrites(optdb, "", {}),
        "registries": registries(),
        "modes": sorted(predefined_modes),
        "linkers": sorted(predefined_linkers),
    }

for name in preload:
    importlib.import_module(name)
already, before = loaded(), look()
for name in packages:
    importlib.import_module(name)
print(json.dumps({
    "loaded": [name for name in loaded() if name not in already],
    "pytensor": sorted(name for name in sys.modules if name.partition(".")[0] == "pytensor"),
    "before": before,
    "after": look(),
}))
"""


def _probe(*, preload: list[str], packages: list[str]) -> dict:
    """Import packages in a fresh interpreter and tell what that loaded and changed."""
    argument = json.dumps([preload, packages, LOADED_LATE])
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, argument],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=PACKAGES)
def imported(request) -> dict:
    """What importing one package loads, and what it changes in PyTensor."""
    first = _probe(preload=[], packages=[request.param])
    # PyTensor's modules register rewrites and rules when they are imported. Once more with all of them
    # there beforehand, so that whatever changes is our doing.
    again = _probe(preload=first["pytensor"], packages=[request.param])
    return {"loaded": first["loaded"], "before": again["before"], "after": again["after"]}


def test_importing_loads_no_backend_and_no_plotting(imported):
    assert imported["loaded"] == []


@pytest.mark.parametrize("what", ["settings", "rewrites", "registries", "modes", "linkers"])
def test_importing_changes_nothing_of_pytensors(imported, what):
    assert imported["after"][what] == imported["before"][what]


@pytest.mark.parametrize("name", _PATHS)
def test_pytensor_settings_are_read_and_never_written(name):
    configs = ("config", "pytensor.config")
    written = []
    for node in ast.walk(ast.parse(_PATHS[name].read_text("utf-8"))):
        match node:
            case ast.Attribute(value=base, attr=attr, ctx=context):
                writes = not isinstance(context, ast.Load) or attr == "change_flags"
            case ast.Call(func=ast.Name(id="setattr"), args=[base, *_]):
                writes = True
            case _:
                continue
        if writes and ast.unparse(base) in configs:
            written.append(ast.unparse(node))
    assert written == []


def test_readme_and_ci_run_one_test_command():
    readme, ci = ROOT / "README.md", ROOT / ".ci" / "run"
    command = "python -m pytest -n 2 --dist worksteal"
    assert command in ci.read_text("utf-8").replace('"$python"', "python")
    if readme.is_file():
        assert f".venv/bin/{command}" in readme.read_text("utf-8")


def test_the_changelog_knows_this_version_or_what_is_to_come():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "## [Unreleased]" in changelog or f"## [{version}]" in changelog
