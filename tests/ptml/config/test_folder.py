"""Networks in folders: written whole or not at all, and read where the state fits."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytensor
import pytest

import ptml
import ptml_state
from ptml.activations import ReLU
from ptml.config import folder, registry
from ptml.config.registry import Registry
from ptml.initializers import Constant
from ptml.layer import Layer
from ptml.layers import RNN, BatchNorm, Dropout, ElmanCell, Input, Lambda, Linear, Sequential
from ptml.optim import adam, add_noise, chain, compile_train
from ptml_state import State, save_state
from ptml_state.strictjson import json_text

ROOT = Path(__file__).parents[3]

#: A value for each field that a layer of the library has no default for.
SAMPLES = {
    "base": (Linear(n_in=3, n_out=2), Linear(n_in=4, n_out=5)),
    "backward": (RNN(n_in=2, n_hidden=3), RNN(n_in=2, n_hidden=4)),
    "branches": ((Dropout("c"),), (Dropout("d"), ReLU())),
    "cell": (ElmanCell(n_in=2, n_hidden=3), ElmanCell(n_in=2, n_hidden=4)),
    "forward": (RNN(n_in=2, n_hidden=3), RNN(n_in=2, n_hidden=4)),
    "in_channels": (2, 4),
    "kernel_size": (3, 2),
    "layer": (Linear(n_in=3, n_out=2), Linear(n_in=4, n_out=5)),
    "layers": ((Dropout("a"),), (Dropout("b"), ReLU())),
    "n": (2, 3),
    "d_model": (4, 8),
    "n_embd": (4, 8),
    "n_embeddings": (4, 6),
    "n_features": (3, 2),
    "n_groups": (1, 2),
    "n_head": (2, 1),
    "n_hidden": (3, 5),
    "n_in": (3, 4),
    "n_layer": (1, 2),
    "n_out": (2, 5),
    "n_positions": (4, 7),
    "out_channels": (2, 4),
    "output_size": (3, 2),
    "rank": (1, 2),
    "scale_factor": (2, 3),
}


def _two_of_each():
    """A network of two layers without a name, of every kind that the library has."""
    layers = []
    for name in Registry():
        cls = Registry().called(name)
        # A function is no data.
        if issubclass(cls, Layer) and cls is not Lambda and not inspect.isabstract(cls):
            fields = [f for f in attrs.fields(cls) if f.init]
            # Of scale_factor and size, which both have a default, one has to be given.
            needed = [f.alias for f in fields if f.default is attrs.NOTHING or f.alias == "scale_factor"]
            layers += [cls(**{alias: SAMPLES[alias][k] for alias in needed}) for k in (0, 1)]
    return Sequential(*layers)


def _net():
    return Sequential(Linear("fc", n_in=2, n_out=3), BatchNorm(n_in=3), Dropout("drop", p=0.1))


def _left(path):
    return sorted(found.name for found in path.iterdir())


def test_a_folder_has_the_network_and_the_state(tmp_path):
    net = _net()
    state = ptml.init(net, seed=0)
    ptml.save_network(net, state, tmp_path / "model")
    assert _left(tmp_path) == ["model"]
    assert _left(tmp_path / "model") == ["network.json", "state.safetensors"]
    assert json.loads((tmp_path / "model" / "network.json").read_text()) == ptml.to_config(net)
    again, loaded = ptml.load_network(tmp_path / "model")
    assert again == net
    assert again is not net
    assert loaded == state
    assert list(loaded) == list(ptml.init(again, seed=0))


def test_two_layers_without_a_name_of_each_kind_are_the_same_in_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    net = _two_of_each()
    assert len(net.layers) > 40
    state = ptml.init(net, seed=3)
    ptml.save_network(net, state, tmp_path / "model")
    program = (
        "import json, sys, ptml\n"
        "net, state = ptml.load_network(sys.argv[1])\n"
        "fresh = ptml.init(net, seed=3)\n"
        "names = list(ptml.config.registry.Registry())\n"
        "rooms = sorted({name.split('.')[1] for name in sys.modules if name.startswith('ptml.')})\n"
        "print(json.dumps([repr(net), list(state), list(fresh), fresh == state, names, rooms]))\n"
        "ptml.save_network(net, state, sys.argv[1] + '2')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown, addresses, fresh, same, names, rooms = json.loads(done.stdout)
    assert shown == repr(net)
    # A leaf's first value hangs on the seed, its address, its shape and its initializer alone.
    assert addresses == fresh == list(state)
    assert same
    # Importing ptml is enough for all classes of the rooms that it opens to be known.
    for module in pkgutil.walk_packages(ptml.__path__, "ptml."):
        if module.name.split(".")[1] in set(rooms) - {"backends"}:
            importlib.import_module(module.name)
    known = Registry()
    assert names == [name for name in known if known.called(name).__module__.split(".")[1] in rooms]
    texts = [(tmp_path / name / "network.json").read_text() for name in ("model", "model2")]
    assert texts[0] == texts[1]


def test_a_network_that_was_trained_predicts_the_same_after_loading(tmp_path):
    net = _net()
    X, y = Input("X", (None, 2)), Input("y", (None, 3))
    loss = ((net(X) - y) ** 2).mean()
    step = compile_train(
        loss, chain(add_noise(1e-3), adam(1e-2)), inputs=[X, y], state=ptml.init(net, seed=0)
    )
    rng = np.random.default_rng(0)
    for _ in range(3):
        step(rng.normal(size=(8, 2)), rng.normal(size=(8, 3)))
    ptml.save_network(net, step.state, tmp_path / "model")
    again, state = ptml.load_network(tmp_path / "model")
    assert "adam/first_moment/fc/W" in state
    X2 = Input("X", (None, 2))
    predict, predict_again = (
        ptml.compile_predict(net(X), inputs=[X], state=step.state),
        ptml.compile_predict(again(X2), inputs=[X2], state=state),
    )
    data = rng.normal(size=(5, 2))
    np.testing.assert_array_equal(predict(data), predict_again(data))


def test_several_networks_are_saved_together(tmp_path):
    shared = Linear("shared", n_in=2, n_out=2)
    pair = (Sequential(shared, ReLU()), Sequential(Linear("head", n_in=2, n_out=1), name="critic"))
    ptml.save_network(pair, ptml.init(pair, seed=0), tmp_path / "pair")
    again, state = ptml.load_network(tmp_path / "pair")
    assert again == pair
    assert list(state) == ["shared/W", "shared/b", "head/W", "head/b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.drop("fc/b"), r"it lacks fc/b$"),
        (
            lambda state: state.drop("BatchNorm"),
            r"it lacks BatchNorm/scale, BatchNorm/b, BatchNorm/running_mean",
        ),
        (
            lambda state: state.rename({"fc": "fc9"}),
            r"it lacks fc/W, fc/b; it has fc9/W, fc9/b, which the network",
        ),
        (
            lambda state: state.astype("float32", "fc/W"),
            r"fc/W is float32\[2,3\], where Linear has float64\[2,3\] \(the dtype of floats is .*floatX",
        ),
        (
            lambda state: state.replace({"fc/b": np.zeros(4)}, reshape=True),
            r"fc/b is float64\[4\], where Linear has",
        ),
        (
            lambda state: state.drop("drop") | State({"drop/key": np.zeros(4, "uint32")}),
            r"drop/key is of role PARAMETER, where Dropout has GENERATOR",
        ),
        (
            lambda state: state | State({"other/W": [1.0]}),
            r"it has other/W, which the network has not. Save what is",
        ),
        (
            lambda state: state | ptml.init(Dropout("more", p=0.5), seed=0),
            r"it has more/key, which the network has not",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_neither_saved_nor_loaded(tmp_path, change, message):
    net = _net()
    state = ptml.init(net, seed=0)
    wrong = change(state)
    with pytest.raises(ptml.ConfigError, match=f"^save_network: the state does not fit .*: {message}"):
        ptml.save_network(net, wrong, tmp_path / "model")
    assert _left(tmp_path) == []
    ptml.save_network(net, state, tmp_path / "model")
    save_state(wrong, tmp_path / "model" / "state.safetensors")
    with pytest.raises(ptml.ConfigError, match=f"model: the state does not fit the network: {message}"):
        ptml.load_network(tmp_path / "model")


def test_a_state_of_layers_in_another_order_is_refused_with_both(tmp_path):
    one, other = Linear(n_in=2, n_out=2), Linear(n_in=2, n_out=2, bias_initializer=Constant(1.0))
    net, swapped = Sequential(one, other), Sequential(other, one)
    ptml.save_network(net, ptml.init(net, seed=0), tmp_path / "model")
    config = json_text(ptml.to_config(swapped))
    (tmp_path / "model" / "network.json").write_text(config)
    with pytest.raises(ptml.ConfigError, match="stand in another order") as caught:
        ptml.load_network(tmp_path / "model")
    assert f"Linear_1 = {one!r}" in str(caught.value)
    assert f"Linear_1 = {other!r}" in str(caught.value)


def test_a_network_that_finds_out_late_that_it_is_impossible_is_refused(tmp_path):
    net = _net()
    ptml.save_network(net, ptml.init(net, seed=0), tmp_path / "model")
    config = ptml.to_config(net)
    config["module"]["layers"][0]["n_out"] = 10**60
    (tmp_path / "model" / "network.json").write_text(json.dumps(config))
    with pytest.raises(ptml.ConfigError, match=r"^.*model: "):
        ptml.load_network(tmp_path / "model")
    config["module"]["layers"] = [{"class": "Linear", "name": "fc", "n_in": 1, "n_out": 1}] * 2
    (tmp_path / "model" / "network.json").write_text(json.dumps(config))
    with pytest.raises(ptml.ConfigError, match="model: the network cannot be laid out: Two pieces"):
        ptml.load_network(tmp_path / "model")


def test_the_floats_are_those_of_the_moment(tmp_path):
    net = _net()
    with pytensor.config.change_flags(floatX="float32"):
        ptml.save_network(net, ptml.init(net, seed=0), tmp_path / "model")
    with pytest.raises(ptml.ConfigError, match=r"pytensor.config.floatX, here float64"):
        ptml.load_network(tmp_path / "model")
    with pytensor.config.change_flags(floatX="float32"):
        _, state = ptml.load_network(tmp_path / "model")
    assert state["fc/W"].dtype == "float32"


def test_what_is_there_is_left_as_it_is(tmp_path):
    net = _net()
    state = ptml.init(net, seed=0)
    ptml.save_network(net, state, tmp_path / "model")
    with pytest.raises(FileExistsError, match=r"model is there already, and is left as it is"):
        ptml.save_network(net, state, tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    for name in ("file", "folder", "link"):
        with pytest.raises(FileExistsError, match=f"{name} is no folder of save_network"):
            ptml.save_network(net, state, tmp_path / name, overwrite=True)
    assert _left(tmp_path) == ["file", "folder", "link", "model"]


def test_a_network_is_overwritten_where_that_is_said(tmp_path):
    net = _net()
    ptml.save_network(net, ptml.init(net, seed=0), tmp_path / "model")
    before, old = ptml.load_network(tmp_path / "model")
    new = ptml.init(net, seed=1)
    ptml.save_network(net, new, tmp_path / "model", overwrite=True)
    assert _left(tmp_path) == ["model"]
    assert ptml.load_network(tmp_path / "model")[1] == new
    # What was loaded lies in the old file still.
    assert old == ptml.init(before, seed=0)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["_write", "save_state", "sync_folder", "rename"])
def test_where_writing_fails_nothing_is_left_and_what_was_there_is(tmp_path, monkeypatch, what, overwrite):
    net = _net()
    old = ptml.init(net, seed=0)
    if overwrite:
        ptml.save_network(net, old, tmp_path / "model")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if what == "rename":
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda a, b: full() if a.name.endswith(".tmp") else rename(a, b))
    else:
        monkeypatch.setattr(folder, what, full)
    with pytest.raises(OSError, match="No space left"):
        ptml.save_network(net, ptml.init(net, seed=1), tmp_path / "model", overwrite=overwrite)
    monkeypatch.undo()
    assert _left(tmp_path) == (["model"] if overwrite else [])
    if overwrite:
        assert ptml.load_network(tmp_path / "model")[1] == old


def test_what_somebody_else_writes_meanwhile_is_left_too(tmp_path, monkeypatch):
    net = _net()
    state = ptml.init(net, seed=0)
    ptml.save_network(net, state, tmp_path / "model")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with pytest.raises(OSError, match=r"not empty|exists"):
        ptml.save_network(net, ptml.init(net, seed=1), tmp_path / "model")
    monkeypatch.undo()
    assert _left(tmp_path) == ["model"]
    assert ptml.load_network(tmp_path / "model")[1] == state


def test_a_network_that_cannot_be_written_leaves_nothing(tmp_path):
    net = Sequential(
        Linear(n_in=1, n_out=1, bias_initializer=lambda rng, shape, dtype: np.zeros(shape, dtype))
    )
    with pytest.raises(ptml.ConfigError, match=r"module.layers\[0\].bias_initializer: it is the function"):
        ptml.save_network(net, ptml.init(net, seed=0), tmp_path / "model")
    with pytest.raises(TypeError, match="save_network writes a State; got dict"):
        ptml.save_network(_net(), {}, tmp_path / "model")
    assert _left(tmp_path) == []


def test_what_is_no_network_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*model"):
        ptml.load_network(tmp_path / "model")
    (tmp_path / "file").write_text("{}")
    with pytest.raises(ptml.ConfigError, match=r"file is a file; a network is a folder with network.json"):
        ptml.load_network(tmp_path / "file")
    with pytest.raises(ptml.ConfigError, match=r"has no network.json, and so is no network"):
        ptml.load_network(tmp_path)
    (tmp_path / "network.json").write_text("{}")
    with pytest.raises(ptml.ConfigError, match=r"has no state.safetensors, and so is no network"):
        ptml.load_network(tmp_path)
    (tmp_path / "state.safetensors").write_text("")
    with pytest.raises(ptml.ConfigError, match=r"network.json: a config is an object with format, ptml"):
        ptml.load_network(tmp_path)


def test_revisions_bring_config_and_state_up_together(tmp_path):
    net = Sequential(Linear("fc", n_in=2, n_out=3))
    state = ptml.init(net, seed=0)
    ptml.save_network(net, state, tmp_path / "model", revision=4)
    assert ptml_state.inspect(tmp_path / "model" / "state.safetensors").revision == 4

    def rename(module):
        (layer,) = module["layers"]
        return {**module, "layers": [{**layer, "name": "head"}]}

    def name(module):
        return {**module, "name": "net"}

    again, moved = ptml.load_network(
        tmp_path / "model",
        revision=6,
        migrations={4: rename, 5: name},
        state_migrations={4: lambda old: old.rename({"fc": "head"})},
    )
    assert again == Sequential(Linear("head", n_in=2, n_out=3), name="net")
    assert moved == state.rename({"fc": "head"})
    with pytest.raises(ptml.ConfigError, match="revision: it is of revision 4 of its application"):
        ptml.load_network(tmp_path / "model", revision=3)
    with pytest.raises(ptml.ConfigError, match="it lacks head/W, head/b"):
        ptml.load_network(tmp_path / "model", revision=5, migrations={4: rename})
