"""The classes that configs may name."""

from __future__ import annotations

import inspect
import sys

import pytest

import ptml
from ptml.config import registry
from ptml.config.registry import Registry, register
from ptml.layers import Dropout, Linear
from ptml.module import Module


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(registry, "_registered", {})


def _classes(module):
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) and issubclass(value, Module):
            yield value


def test_every_public_class_of_the_library_is_known_by_its_own_name():
    public = {
        cls
        for name, module in list(sys.modules.items())
        if name.startswith("ptml.") and hasattr(module, "__all__") and ".backends." not in name
        for cls in _classes(module)
        if cls is not Module and cls.__module__ == name
    }
    assert len(public) > 70
    known = Registry()
    assert {known.name_of(cls) for cls in public} == {cls.__name__ for cls in public}
    assert all(known.called(cls.__name__) is cls for cls in public)


def test_a_class_is_registered_in_three_spellings():
    class One(ptml.Layer):
        pass

    assert register(One) is One

    @ptml.register
    class Two(ptml.Layer):
        pass

    @ptml.register(name="mine/3")
    class Three(ptml.Layer):
        pass

    known = Registry()
    assert [known.called(name) for name in ("One", "Two", "mine/3")] == [One, Two, Three]
    assert [known.name_of(cls) for cls in (One, Two, Three)] == ["One", "Two", "mine/3"]


def test_registering_a_class_twice_changes_nothing():
    class One(ptml.Layer):
        pass

    register(register(One))
    assert Registry().called("One") is One


def test_two_classes_cannot_have_one_name():
    @register(name="Block")
    class One(ptml.Layer):
        pass

    class Two(ptml.Layer):
        pass

    with pytest.raises(ValueError, match=r"'Block' in configs: .*One has it.*name='.*Two'"):
        register(Two, name="Block")
    with pytest.raises(ValueError, match=r"'Linear' in configs: ptml.layers.linear.Linear has it"):
        register(Two, name="Linear")


def test_a_class_has_one_name():
    @register(name="a")
    class One(ptml.Layer):
        pass

    with pytest.raises(ValueError, match="One is registered as 'a', and so cannot be 'b' as well"):
        register(One, name="b")
    with pytest.raises(ValueError, match="Linear is the library's own"):
        register(Linear, name="b")


def test_a_class_that_is_defined_again_takes_the_place_of_the_first():
    def define():
        source = "import ptml\n@ptml.register\nclass Cell(ptml.Layer):\n    pass\n"
        namespace = {"__name__": "notebook"}
        exec(source, namespace)
        return namespace["Cell"]

    first, second = define(), define()
    assert Registry().called("Cell") is second
    with pytest.raises(ptml.ConfigError, match="Cell was defined again since this object was made"):
        ptml.to_config(first())


@pytest.mark.parametrize("given", [3, "Linear", int, Dropout(), lambda: None])
def test_only_classes_of_modules_are_registered(given):
    with pytest.raises(TypeError, match="register takes a class of modules"):
        register(given)


@pytest.mark.parametrize("name", ["", 3])
def test_a_name_is_a_text(name):
    class One(ptml.Layer):
        pass

    with pytest.raises(ValueError, match="A class is registered by a name"):
        register(One, name=name)


def test_a_class_of_an_example_is_not_the_librarys():
    namespace = {"__name__": "ptml.layers.linear"}
    exec("import ptml\nclass Example(ptml.Layer):\n    pass\n", namespace)
    assert "Example" not in list(Registry())
    with pytest.raises(LookupError, match="Example is not registered"):
        Registry().name_of(namespace["Example"])


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(LookupError, match="there is no class 'Liner'; did you mean 'Linear'"):
        Registry().called("Liner")
    with pytest.raises(LookupError, match=r"there is no class 'x+…. A config names"):
        Registry().called("x" * 1_000_000)
