"""Configs that are wrong: each is refused with the place and the reason."""

from __future__ import annotations

import inspect
import json
import math
import sys

import pytest

import ptml
from ptml.activations import ReLU
from ptml.config import decode, registry
from ptml.initializers import Constant
from ptml.layers import Linear, Sequential


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(registry, "_registered", {})


def _config(module, **around):
    return {"format": 1, "ptml": "0.1.0", "module": module, **around}


LINEAR = {"class": "Linear", "n_in": 2, "n_out": 3}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            {**LINEAR, "n_uot": 1},
            "module.n_uot: Linear has no field 'n_uot'; did you mean 'n_out'? It has bias,",
        ),
        ({"class": "ReLU", "x": 1}, "module.x: ReLU has no field 'x'. It has name."),
        ({"class": "Linear"}, "module: Linear lacks n_in and n_out, which have no default"),
        ({"class": "Sequential"}, "module: Sequential lacks layers, which has no default"),
        ({"class": "Sequential", "layers": []}, "module: Sequential takes one layer or more; got none."),
        (
            {"class": "Sequential", "layers": [LINEAR, {**LINEAR, "n_out": -1}]},
            "module.layers[1].n_out: Linear: n_out must be a positive integer; got -1.",
        ),
        (
            {
                "class": "Sequential",
                "layers": [{**LINEAR, "weight_initializer": {"class": "Normal", "scale": "a"}}],
            },
            "module.layers[0].weight_initializer.scale: Normal: scale must be a number of 0 or more",
        ),
        ({"class": "Sequential", "layers": LINEAR}, "module"),
        ({"class": "Sequential", "layers": [3]}, "Sequential takes layers; its argument 0 is 3"),
        ({"class": "Dropout", "p": True}, "module.p: Dropout: p must be a probability in [0, 1); got True."),
        ({**LINEAR, "name": "a*b"}, "module.name: "),
        ({**LINEAR, "name": 3}, "module"),
        ({"class": "Liner"}, "module.class: there is no class 'Liner'; did you mean 'Linear'"),
        ({"class": "os.system"}, "module.class: there is no class 'os.system'"),
        ({"class": "builtins.eval"}, "module.class: there is no class 'builtins.eval'"),
        (
            {"class": "ptml.layers.linear.Linear"},
            "module.class: there is no class 'ptml.layers.linear.Linear'",
        ),
        ({"class": "Module"}, "module.class: there is no class 'Module'"),
        ({"class": ["Linear"]}, "module.class: a class is named by a text; got a list"),
        ({"class": None}, "module.class: a class is named by a text; got null"),
        ({"class": "Transform"}, "Can't instantiate abstract class Transform"),
        ({}, 'module: an object says what it is, by a field "class"; this one has none'),
        ({"n_in": 2}, "this one has 'n_in'"),
        ([], "module: a config is of a module, or of a list of them; got a list"),
        ([3], "module: a config is of a module"),
        (3, "module: a config is of a module, or of a list of them; got 3"),
        (None, "module: a config is of a module, or of a list of them; got null"),
        ({"@float": "inf"}, "module: a config is of a module"),
        (
            {"class": "Constant", "value": {"@float": "1e5"}},
            "module.value: @float is one of inf, -inf, nan; got '1e5'",
        ),
        (
            {"class": "Constant", "value": {"@float": []}},
            "module.value: @float is one of inf, -inf, nan; got a list",
        ),
        (
            {"class": "Constant", "value": {"@float": "inf", "x": 1}},
            "@float stands alone in an object; here it has 'x'",
        ),
        ({"class": "Constant", "value": {"@": 1}}, "module.value: an object says what it is"),
        ({"class": "Freeze", "where": {"@role": "os"}}, "module.where: @role is one of parameter, "),
        ({"class": "Freeze", "where": {"@role": {}}}, "module.where: @role is one of parameter, "),
        ({"class": "Freeze", "where": {"@class": "int"}}, "module.where: there is no class 'int'"),
        ({"class": "Freeze", "where": {"@where": "a//b"}}, "module.where.@where: 'a//b' is no pattern"),
        ({"class": "Freeze", "where": {"@where": 3}}, "module.where.@where: a selector is a pattern"),
        ({"class": "Freeze", "where": {"@not": LINEAR}}, "module.where.@not: a selector is a pattern"),
        ({"class": "Freeze", "where": {"@all": []}}, "module.where: @all is a list of selectors; got a list"),
        ({"class": "Freeze", "where": {"@any": "a"}}, "module.where: @any is a list of selectors; got 'a'"),
        ({"@ref": 1}, "module: @ref is 1, and no object that is finished before it has that @id"),
        (
            {"class": "Sequential", "@id": 1, "layers": [{"@ref": 1}]},
            "module.layers[0]: @ref is 1, and no object",
        ),
        (
            {"class": "Sequential", "layers": [{"@ref": []}]},
            "module.layers[0]: @ref is a list, and no object",
        ),
        (
            {"class": "Sequential", "layers": [{"@ref": 2}, {**LINEAR, "@id": 2}]},
            "module.layers[0]: @ref is 2",
        ),
        (
            {"class": "Sequential", "layers": [{**LINEAR, "@id": 2}] * 2},
            "layers[1].@id: two objects have the @id 2",
        ),
        ({**LINEAR, "@id": "a"}, "module.@id: an @id is a whole number; got 'a'"),
        ({**LINEAR, "@id": True}, "module.@id: an @id is a whole number; got true"),
        ({**LINEAR, "@x": 1}, "Linear has no field '@x'"),
        ({"@part": "W", "@of": LINEAR}, "module.@part: Linear builds no layer called 'W'"),
        ({"@part": "__class__", "@of": LINEAR}, "module.@part: Linear builds no layer called '__class__'"),
        ({"@part": ["W"], "@of": LINEAR}, "module.@part: Linear builds no layer called a list"),
        ({"@part": "real", "@of": 3}, "module.@part: int builds no layer called 'real'"),
        ({"@part": "W"}, "module: @part stands alone"),
        ({"@of": LINEAR}, "module: an object says what it is"),
        ({"@ref": 1, "@of": LINEAR}, "module: @ref stands alone"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(module, message):
    with pytest.raises(ptml.ConfigError) as caught:
        ptml.from_config(_config(module))
    assert str(caught.value).startswith("config: module")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (3, "config: a config is an object with format, ptml, module, such as to_config gives; got 3"),
        ([], "got a list"),
        ({}, "got an empty object"),
        (LINEAR, "got an object with 'class', 'n_in', 'n_out'"),
        ({"format": 1, "module": LINEAR}, "config: a config has format, ptml, module; this one lacks ptml"),
        ({"format": 1, "ptml": "0"}, "this one lacks module"),
        (
            _config(LINEAR, format=2),
            "config: format: it is of format 2, written by ptml '0.1.0'; this ptml reads up to",
        ),
        (_config(LINEAR, format=0), "config: format: it is of format 0, which never was"),
        (_config(LINEAR, format=-(10**30)), "which never was"),
        (_config(LINEAR, format=True), "config: format: a format is a whole number; got true"),
        (_config(LINEAR, format=1.0), "config: format: a format is a whole number; got 1.0"),
        (_config(LINEAR, ptml=1), "config: ptml: a version is a text; got 1"),
        (_config(LINEAR, revision=-1), "config: revision: a revision is a whole number of 0 or more; got -1"),
        (_config(LINEAR, modul=1), "config: modul: a config has no field 'modul'; did you mean 'module'?"),
        ({"format": math.inf}, "config: it is no JSON: Out of range float values"),
        ({"format": object()}, "config: it is no JSON: Object of type object"),
        ('{"format": 1, "format": 1}', "config: 'format' is there twice"),
        (
            '{"format": 1, "ptml": "0", "module": {"class": "ReLU", "class": "ReLU"}}',
            "config: module: 'class' is there",
        ),
        (b"\xff", "config: the config is no UTF-8"),
        ("", "config: the config is no JSON at line 1"),
        ("[" * 100_000, "config: the config is nested more than 120 deep"),
    ],
)
def test_what_stands_around_the_module_is_checked_too(config, message):
    with pytest.raises(ptml.ConfigError) as caught:
        ptml.from_config(config)
    assert message in str(caught.value)


def test_a_dict_that_holds_itself_is_refused():
    config = _config(LINEAR)
    config["module"] = config
    with pytest.raises(ptml.ConfigError, match="config: it is no JSON: Circular reference"):
        ptml.from_config(config)


def test_a_config_error_is_a_value_error():
    with pytest.raises(ValueError, match="there is no class"):
        ptml.from_config(_config({"class": "x"}))


def test_missing_fields_have_the_defaults_of_their_class():
    assert ptml.from_config(_config(LINEAR)) == Linear(n_in=2, n_out=3)
    assert ptml.from_config(_config({"class": "Adam"})) == ptml.optim.adam()


def test_references_cannot_blow_a_small_file_up():
    layer = {"class": "ReLU", "@id": 0}
    for number in range(1, 40):
        layer = {"class": "Sequential", "@id": number, "layers": [layer, {"@ref": number - 1}]}
    with pytest.raises(ptml.ConfigError, match="more than 100000 modules, counted wherever they stand"):
        ptml.from_config(_config(layer))


def test_a_class_that_runs_into_an_error_of_any_kind_is_told():
    @ptml.register
    class Touchy(ptml.Layer):
        n: int

        def __attrs_post_init__(self):
            if self.n == 0:
                raise ZeroDivisionError("by " + "x" * 100_000)
            self.__attrs_post_init__()

        def build(self, X):
            return X

    with pytest.raises(ptml.ConfigError, match=r"config: module: Touchy: by x+…$"):
        ptml.from_config(_config({"class": "Touchy", "n": 0}))
    with pytest.raises(ptml.ConfigError, match="config: module: Touchy: maximum recursion depth"):
        ptml.from_config(_config({"class": "Touchy", "n": 1}))


def test_a_config_that_is_read_deep_in_the_stack_is_an_error_of_its_own():
    net = ReLU()
    for _ in range(50):
        net = Sequential(net)
    text = json.dumps(ptml.to_config(net))

    def descend(levels):
        return descend(levels - 1) if levels else ptml.from_config(text)

    assert descend(0) == net
    with pytest.raises(ptml.ConfigError, match=r"nested too deeply|maximum recursion depth"):
        descend(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)


def test_migrations_run_from_the_revision_of_the_config_on():
    @ptml.register
    class Block(ptml.Layer):
        width: int
        slope: float

        def build(self, X):
            return X

    def widen(module):
        return {"class": module["class"], "width": module["size"]}

    def slope(module):
        return {**module, "slope": 0.5}

    migrations = {1: slope, 0: widen}
    old = {"class": "Block", "size": 3}

    def read(config, revision=2, migrations=migrations):
        return ptml.from_config(config, revision=revision, migrations=migrations)

    assert read(_config(old)) == Block(width=3, slope=0.5)
    assert read(_config({"class": "Block", "width": 3}, revision=1)) == Block(width=3, slope=0.5)
    today = ptml.to_config(Block(width=3, slope=0.1), revision=2)
    assert today["revision"] == 2
    assert read(today) == read(today, migrations=None) == Block(width=3, slope=0.1)
    with pytest.raises(ptml.ConfigError, match=r"module.size: Block has no field 'size'"):
        ptml.from_config(_config(old))
    with pytest.raises(ptml.ConfigError, match=r"revision: it is of revision 3 of its application"):
        read(_config(old, revision=3))
    with pytest.raises(ptml.ConfigError, match=r"it is of revision 0, and there is no migration from 1 to 2"):
        read(_config(old), migrations={0: widen})
    with pytest.raises(ValueError, match=r"migrations= lead up to a revision: write revision="):
        read(_config(old), revision=None)


def test_a_migration_that_fails_is_told():
    with pytest.raises(
        ptml.ConfigError, match="config: the migration from revision 0 fails: KeyError: 'size'"
    ) as caught:
        ptml.from_config(_config(LINEAR), revision=1, migrations={0: lambda module: module["size"]})
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "module: a config is of a module, or of a list of them; got null"),
        (math.nan, "it is no JSON: Out of range float values"),
        ({"class": "Liner"}, "module.class: there is no class 'Liner'"),
    ],
)
def test_what_a_migration_gives_is_checked_like_any_config(given, message):
    with pytest.raises(ptml.ConfigError, match=message):
        ptml.from_config(_config(LINEAR), revision=1, migrations={0: lambda module: given})


def test_a_config_of_an_earlier_format_is_brought_up(monkeypatch):
    monkeypatch.setattr(decode, "FORMAT", 3)
    monkeypatch.setattr(
        decode,
        "UPGRADES",
        {
            1: lambda config: {**config, "module": {**config["module"], "class": "Constant"}},
            2: lambda config: {**config, "module": {**config["module"], "value": 2}},
        },
    )
    assert ptml.from_config(_config({"class": "Const"})) == Constant(2)
    with pytest.raises(
        ptml.ConfigError, match=r"format 4, written by ptml '0.1.0'; this ptml reads up to format 3"
    ):
        ptml.from_config(_config({"class": "Const"}, format=4))
