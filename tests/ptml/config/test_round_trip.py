"""Modules to configs and back: every class of the library, every kind of value, one object staying one."""

from __future__ import annotations

import inspect
import itertools
import json
import math

import attrs
import numpy as np
import pytest

import ptml
from ptml.activations import PReLU, ReLU
from ptml.config import registry
from ptml.config.registry import Registry
from ptml.initializers import Constant, HeNormal, Initializer, Uniform
from ptml.layers import RNN, BatchNorm, Dropout, ElmanCell, Linear, Sequential
from ptml.loss import CrossEntropy
from ptml.module import Module
from ptml.optim import (
    adam,
    adamw,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    cosine_schedule,
    freeze,
    partition,
    reduce_on_plateau,
    scalar_state,
    sgd,
    warmup_cosine,
)
from ptml_state import Role, where

#: A value for each field, by its name, that a class of the library has no default for.
SAMPLES = {
    "base": Linear("base", n_in=4, n_out=3),
    "boundaries": (10,),
    "backward": RNN("backward", n_in=2, n_hidden=3),
    "branches": (Dropout("one"), Dropout()),
    "cell": ElmanCell("cell", n_in=2, n_hidden=3),
    "builds_updates": sgd(0.1),
    "d_model": 4,
    "decay_every": 5,
    "decide": ptml.optim.nonfinite(),
    "factor": 0.5,
    "final_learning_rate": 0.01,
    "forward": RNN("forward", n_in=2, n_hidden=3),
    "groups": {"fc1": sgd(0.1), "fc2/W": freeze()},
    "in_channels": 4,
    "kernel_size": 3,
    "layer": Linear("inner", n_in=4, n_out=3),
    "layers": (Dropout("drop"), Dropout()),
    "learning_rate": 0.1,
    "max_norm": 2.0,
    "loss": ptml.loss.SquaredError(),
    "n": 3,
    "n_classes": 3,
    "n_embd": 4,
    "n_embeddings": 6,
    "n_features": 4,
    "n_groups": 2,
    "n_head": 2,
    "n_hidden": 5,
    "n_in": 4,
    "n_layer": 2,
    "n_out": 3,
    "n_positions": 5,
    "out_channels": 6,
    "output_size": 3,
    "peak_value": 1.0,
    "rank": 2,
    "rule": adam(),
    "scale_factor": 2,
    "schedule": cosine_schedule(0.1, 100),
    "schedules": (cosine_schedule(0.1, 10), cosine_schedule(0.1, 20)),
    "timescale": 7,
    "total_steps": 30,
    "transforms": (clip_by_global_norm(1.0), adam()),
    "value": (1.0, math.inf),
    "where": "fc1/W",
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(registry, "_registered", {})


def _library() -> list:
    known = Registry()
    classes = [known.called(name) for name in known]
    return [cls for cls in classes if not inspect.isabstract(cls)]


def _needed(cls: type) -> dict:
    fields = [f for f in attrs.fields(cls) if f.init]
    # Of scale_factor and size, which both have a default, one has to be given.
    wanted = [f.alias for f in fields if f.default is attrs.NOTHING or f.alias == "scale_factor"]
    return {name: SAMPLES[name] for name in wanted}


def _others(cls: type):
    """Give values of a class that each have one field otherwise, where the class takes it."""
    for field in attrs.fields(cls):
        if not field.init or field.default is attrs.NOTHING:
            continue
        default = field.default
        tries = [
            True,
            False,
            3,
            0.25,
            math.inf,
            "other",
            "none",
            (0, 2),
            None,
            HeNormal(mode="fan_out"),
            sgd(0.3),
        ]
        for value in tries:
            if type(value) is type(default) and value == default:
                continue
            try:
                made = cls(**{**_needed(cls), field.alias: value})
            except (TypeError, ValueError):
                continue
            yield made


def _again(module):
    """Write a module as JSON, and read it."""
    return ptml.from_config(json.dumps(ptml.to_config(module), allow_nan=False))


@pytest.mark.parametrize(
    "cls",
    [c for c in _library() if c.__name__ not in ("Lambda", "ReduceOnPlateau")],
    ids=lambda c: c.__name__,
)
def test_every_class_of_the_library_is_written_and_read(cls):
    tried = 0
    for module in itertools.chain([cls(**_needed(cls))], _others(cls)):
        again = _again(module)
        assert type(again) is cls
        assert again == module
        assert repr(again) == repr(module)
        tried += 1
    assert tried > sum(f.default is not attrs.NOTHING for f in attrs.fields(cls) if f.init) / 2


def test_a_plateau_acts_on_a_leaf_of_state_and_so_is_no_data():
    scale = scalar_state("scale", 1.0)
    policy = reduce_on_plateau(sgd(0.1), scale)
    with pytest.raises(ptml.ConfigError, match=r"^to_config: module.scale: it is symbolic \(scale"):
        ptml.to_config(policy)


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        2**53 + 1,
        -(10**300),
        True,
        False,
        None,
        "",
        "é\u2028\x00'\"",
        (),
        ((1, 2.0), ("a", None)),
        [[1], [2]],
        np.float64(0.1),
        np.arange(3),
        np.float32(0.1),
    ],
    ids=repr,
)
def test_values_of_fields_are_exact(value):
    module = Constant(value)
    again = _again(module)
    assert again == module
    assert repr(again) == repr(module)


def test_nan_is_nan():
    assert math.isnan(_again(Constant(math.nan)).value)


def test_the_config_is_plain_json():
    config = ptml.to_config(Sequential(Linear("fc", n_in=2, n_out=3), ReLU(), name="net"))
    assert json.loads(json.dumps(config)) == config
    assert config == {
        "format": 1,
        "ptml": ptml.__version__,
        "module": {
            "class": "Sequential",
            "name": "net",
            "layers": [
                {
                    "class": "Linear",
                    "name": "fc",
                    "n_in": 2,
                    "n_out": 3,
                    "bias": True,
                    "weight_initializer": {"class": "XavierNormal", "gain": 1.0},
                    "bias_initializer": {"class": "Zeros"},
                },
                {"class": "ReLU"},
            ],
        },
    }


def test_names_are_kept_and_a_layer_without_one_stays_without():
    net = Sequential(Linear("Linear", n_in=2, n_out=2), Linear(n_in=2, n_out=2), Linear(n_in=2, n_out=2))
    again = _again(net)
    addresses = ["Linear/W", "Linear_1/W", "Linear_2/W"]
    assert [handle.slot.name for handle in ptml.slots(again, "**/W")] == ["W"] * 3
    assert list(ptml.init(again, seed=0).select("**/W")) == addresses
    assert list(ptml.init(again, seed=0)) == list(ptml.init(net, seed=0))


def test_one_layer_in_two_places_stays_one():
    tied = Linear(n_in=3, n_out=3)
    net = Sequential(tied, ReLU(), Sequential(tied, PReLU(), name="inner"))
    config = ptml.to_config(net)
    assert config["module"]["layers"][0]["@id"] == 1
    assert config["module"]["layers"][2]["layers"][0] == {"@ref": 1}
    again = _again(net)
    assert again[0] is again[2][0]
    assert list(ptml.init(again, seed=0)) == ["Linear/W", "Linear/b", "PReLU/W"]


def test_two_equal_layers_stay_two():
    again = _again(Sequential(Linear(n_in=3, n_out=3), Linear(n_in=3, n_out=3)))
    assert again[0] is not again[1]
    assert again[0] == again[1]


def test_a_layer_of_two_networks_that_are_written_together_stays_one():
    shared = Linear("shared", n_in=2, n_out=2)
    one, other = _again((Sequential(shared), Sequential(ReLU(), shared)))
    assert one[0] is other[1]


def test_a_default_that_all_layers_have_is_nothing_that_they_share():
    text = json.dumps(ptml.to_config(Sequential(*(Linear(n_in=2, n_out=2) for _ in range(3)))))
    assert "@id" not in text
    initializer = Uniform(-1.0, 1.0)
    net = Sequential(*(Linear(n_in=2, n_out=2, weight_initializer=initializer) for _ in range(2)))
    again = _again(net)
    assert again[0].weight_initializer is again[1].weight_initializer


def test_a_default_with_state_is_shared():
    default = PReLU("slope")

    @ptml.register
    class Sloped(ptml.Layer):
        slope: ptml.Layer = default

        def build(self, X):
            return self.slope(X)

    again = _again(Sequential(Sloped(), Sloped()))
    assert again[0].slope is again[1].slope


class Twice(ptml.Layer):
    """Build one layer, and apply it twice."""

    n_in: int
    initializer: Initializer = Constant(0.5)

    @ptml.sublayer
    def inner(self):
        return Linear(
            f"{self.name}/inner", n_in=self.n_in, n_out=self.n_in, weight_initializer=self.initializer
        )

    def build(self, X):
        return self.inner(self.inner(X))


def test_what_a_layer_builds_is_its_own_also_where_it_is_used_elsewhere():
    ptml.register(Twice, name="tests/Twice")
    block = Twice("block", n_in=2)
    for net in (Sequential(block, block.inner), Sequential(block.inner, block)):
        again = _again(net)
        owner, part = (again[0], again[1]) if isinstance(again[0], Twice) else (again[1], again[0])
        assert part is owner.inner
        assert list(ptml.init(again, seed=0)) == ["block/inner/W", "block/inner/b"]


def test_one_of_the_layers_that_a_layer_builds_is_its_own_too():
    stack = RNN("stack", n_in=2, n_hidden=2, n_layers=2)
    again = _again(Sequential(stack, stack.layers[1]))
    assert again[1] is again[0].layers[1]
    config = ptml.to_config(Sequential(stack, stack.layers[1]))
    assert config["module"]["layers"][1]["@part"] == "layers/1"
    config["module"]["layers"][1]["@part"] = "layers/2"
    with pytest.raises(ptml.ConfigError, match="layers/1"):
        ptml.from_config(config)


def test_rules_with_masks_groups_and_guards_are_data():
    rule = apply_if_finite(
        chain(
            clip_by_global_norm(1.0),
            adamw(
                warmup_cosine(1e-3, total_steps=100, warmup_steps=10),
                mask=where("**/W") & ~where("head") | Role.PARAMETER & where(Linear | BatchNorm),
            ),
        )
    )
    assert _again(rule) == rule
    groups = partition({"encoder": adam(1e-4), Linear: sgd(0.1), Role.STATISTIC: freeze()}, otherwise=adam())
    assert _again(groups) == groups
    assert _again(CrossEntropy(class_weights=[1, 2.5])) == CrossEntropy(class_weights=(1, 2.5))


def test_a_private_field_goes_by_the_name_that_its_constructor_takes():
    @ptml.register
    class Hidden(ptml.Layer):
        _secret: int
        derived: int = attrs.field(init=False, default=7)

        def build(self, X):
            return X

    config = ptml.to_config(Hidden("h", secret=3))
    assert config["module"] == {"class": "Hidden", "name": "h", "secret": 3}
    assert ptml.from_config(config) == Hidden("h", secret=3)


def test_an_initializer_made_of_a_function_is_registered_like_a_class():
    @ptml.register
    @ptml.initializers.initializer
    def eye(rng, shape, dtype, gain=1.0):
        return gain * np.eye(*shape)

    net = Linear(n_in=2, n_out=2, weight_initializer=eye(gain=2.0))
    np.testing.assert_array_equal(ptml.init(_again(net), seed=0)["Linear/W"], 2 * np.eye(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adam(scalar_state("rate")), r"^to_config: module.learning_rate: it is symbolic \(rate"),
        (
            lambda: Sequential(ReLU(), Linear(n_in=1, n_out=1, bias_initializer=np.zeros_like)),
            r"module.layers\[1\].bias_initializer: it is .*zeros_like",
        ),
        (
            lambda: chain(lambda updates, parameters: updates, adam()),
            r"module.transforms\[0\]: it is the function .*lambda.* a config holds no code",
        ),
        (lambda: Constant(1j), r"module.value: it is a complex, and a config holds numbers, .*: 1j"),
        (lambda: Constant({"a": 1}), r"module.value: it is a dict"),
        (lambda: adamw(mask=lambda p: p.ndim > 1), r"module.mask: it is the function"),
        (
            lambda: adamw(mask=where(lambda p: True) & Role.PARAMETER),
            r"module.mask: it selects by a function or a slot",
        ),
        (lambda: adamw(mask=Linear("fc", n_in=1, n_out=1).W), r"module.mask: it is symbolic"),
        (lambda: freeze(int), r"module.where: it is a type"),
        (lambda: Constant("\ud800"), r"module.value: '\\ud800' has half a character"),
        (lambda: Constant(10**4500), r"^config: it is no JSON: Exceeds the limit"),
    ],
)
def test_what_is_no_data_is_told_by_its_place(make, message):
    with pytest.raises(ptml.ConfigError, match=message):
        ptml.to_config(make())


def test_a_class_that_is_not_registered_cannot_be_written():
    class Mine(ptml.Layer):
        def build(self, X):
            return X

    with pytest.raises(
        ptml.ConfigError, match=r"module.layers\[0\]: Mine is not registered, so nobody could"
    ):
        ptml.to_config(Sequential(Mine()))


@pytest.mark.parametrize("given", [3, "Linear", {"a": ReLU()}, None, Linear])
def test_only_modules_are_written(given):
    with pytest.raises(TypeError, match="to_config writes a module, or a tuple of them"):
        ptml.to_config(given)


def test_a_tuple_is_of_modules():
    with pytest.raises(ptml.ConfigError, match="a config is of a module, or of a list of them"):
        ptml.to_config((ReLU(), 3))


def test_a_class_that_its_fields_do_not_make_again_is_told():
    @ptml.register
    class Doubles(ptml.Layer):
        n: int = attrs.field(converter=lambda n: 2 * n)

        def build(self, X):
            return X

    with pytest.raises(ptml.ConfigError, match="Doubles is not made again by its own fields"):
        ptml.to_config(Doubles(n=1))


def test_a_network_is_as_deep_as_can_be_read():
    net: Module = ReLU()
    for _ in range(50):
        net = Sequential(net)
    assert _again(net) == net
    for _ in range(50):
        net = Sequential(net)
    with pytest.raises(ptml.ConfigError, match="nested"):
        ptml.to_config(net)


@pytest.mark.parametrize("revision", [-1, True, "1", 1.0])
def test_a_revision_is_a_whole_number(revision):
    with pytest.raises(ValueError, match="revision is a whole number of 0 or more"):
        ptml.to_config(ReLU(), revision=revision)
