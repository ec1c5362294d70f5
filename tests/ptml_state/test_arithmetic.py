"""Arithmetic of states, against NumPy in float64: what moves, what stays the first's, and what is refused."""

from __future__ import annotations

import math

import attrs
import ml_dtypes
import numpy as np
import pytest

from ptml_state import (
    Role,
    State,
    add,
    average,
    cosines,
    difference,
    interpolate,
    load_state,
    map_states,
    norms,
    save_state,
    where,
)

RULES = {
    "map_states": lambda a, b, **options: map_states(np.maximum, a, b, **options),
    "average": lambda a, b, **options: average([a, b], **options),
    "interpolate": lambda a, b, **options: interpolate(a, b, 0.3, **options),
    "difference": difference,
    "cosines": cosines,
}

each_rule = pytest.mark.parametrize("name", RULES)


def trained(seed: int, dtype: str = "float64") -> State:
    rng = np.random.default_rng(seed)
    return State(
        {
            "fc": {"W": rng.normal(size=(3, 2)).astype(dtype), "b": rng.normal(size=2).astype(dtype)},
            "bn/running_mean": rng.normal(size=2).astype(dtype),
            "drop/key": rng.integers(0, 2**32, 4, "uint32"),
            "adam/step_count": np.int64(seed),
        },
        roles={"bn": Role.STATISTIC, "drop": Role.GENERATOR, "adam": Role.CLOCK},
    )


# ---- values


def test_an_average_is_the_mean_of_each_floating_leaf():
    states = [trained(seed) for seed in range(3)]
    mean = average(states)
    for address in ("fc/W", "fc/b", "bn/running_mean"):
        np.testing.assert_allclose(mean[address], np.mean([s[address] for s in states], 0), rtol=1e-15)


def test_an_average_weighs_in_proportion():
    states = [trained(seed) for seed in range(3)]
    mean = average(iter(states), iter([1, 2, 5]))
    expected = np.average([s["fc/W"] for s in states], axis=0, weights=[1, 2, 5])
    np.testing.assert_allclose(mean["fc/W"], expected, rtol=1e-15)


def test_the_average_of_equal_states_is_that_state():
    assert average([trained(1, "float32")] * 7) == trained(1, "float32")


def test_a_state_of_weight_zero_has_no_influence_even_where_it_is_not_finite():
    broken = trained(1).replace({"fc/W": math.nan, "fc/b": math.inf})
    assert average([trained(0), broken], [2, 0]) == trained(0)


def test_interpolation_reaches_both_ends_to_the_last_bit():
    start, end = trained(0).replace({"fc/b": 1e9}), trained(1).replace({"fc/b": [1 / 3, -np.inf]})
    assert interpolate(start, end, 0) == start
    reached = interpolate(start.replace({"fc/W": np.inf}), end, 1)
    for address in ("fc/W", "fc/b", "bn/running_mean"):
        np.testing.assert_array_equal(reached[address], end[address])


def test_interpolation_goes_part_of_the_way_and_beyond():
    start, end = trained(0), trained(1)
    for share in (0.25, -0.5, 1.5):
        expected = start["fc/W"] + share * (end["fc/W"] - start["fc/W"])
        np.testing.assert_allclose(interpolate(start, end, share)["fc/W"], expected, rtol=1e-15)


def test_interpolating_time_and_again_is_an_exponential_average():
    kept, expected = trained(0), trained(0)["fc/W"]
    for seed in range(1, 20):
        kept = interpolate(kept, trained(seed), 0.1)
        expected = 0.9 * expected + 0.1 * trained(seed)["fc/W"]
    np.testing.assert_allclose(kept["fc/W"], expected, rtol=1e-13)


def test_an_average_kept_in_float32_takes_up_steps_too_small_for_half_precision():
    state = State({"W": np.ones(3, ml_dtypes.bfloat16)})
    kept = state.astype("float32")
    for _ in range(10):
        kept = interpolate(kept, state.replace({"W": 2.0}), 1e-3)
    assert kept["W"].dtype == np.float32
    np.testing.assert_allclose(kept["W"], 2 - (1 - 1e-3) ** 10, rtol=1e-6)


def test_a_difference_added_back_leads_to_where_it_was_taken():
    base, tuned = trained(0), trained(1)
    change = difference(tuned, base)
    assert list(change) == ["fc/W", "fc/b", "bn/running_mean"]
    assert change.roles["bn/running_mean"] is Role.STATISTIC
    np.testing.assert_array_equal(change["fc/W"], tuned["fc/W"] - base["fc/W"])
    np.testing.assert_allclose(add(base, change)["fc/W"], tuned["fc/W"], rtol=1e-14)
    np.testing.assert_allclose(
        add(base, change, scale=-2)["fc/W"], base["fc/W"] - 2 * (tuned["fc/W"] - base["fc/W"]), rtol=1e-14
    )


def test_a_difference_in_float64_of_float32_states_loses_nothing():
    base, tuned = trained(0, "float32"), trained(1, "float32")
    back = add(base, difference(tuned.astype("float64"), base))
    assert back["fc/W"].dtype == np.float32
    np.testing.assert_array_equal(back["fc/W"], tuned["fc/W"])


def test_several_differences_are_added_together_where_each_has_leaves():
    base, one, other = (trained(seed) for seed in range(3))
    both = add(base, difference(one, base), difference(other, base, where="fc/b"), scale=0.5)
    W, b = "fc/W", "fc/b"
    np.testing.assert_allclose(both[W], (base[W] + one[W]) / 2, rtol=1e-14)
    np.testing.assert_allclose(both[b], (one[b] + other[b]) / 2, rtol=1e-14)
    assert add(base) == base


def test_added_leaves_may_be_selected():
    base, tuned = trained(0), trained(1)
    moved = add(base, difference(tuned, base), where=Role.STATISTIC)
    assert not base.select("fc").diff(moved.select("fc"))
    assert base.diff(moved).changed.keys() == {"bn/running_mean"}


def test_a_function_of_states_sees_float64_and_is_rounded_to_the_first_ones_dtype():
    seen = []

    def largest(*arrays):
        seen.extend(array.dtype for array in arrays)
        return np.max(arrays, 0)

    states = [trained(0, "float32"), trained(1, "float16"), trained(2)]
    merged = map_states(largest, *states, where="fc/W")
    assert set(seen) == {np.dtype("float64")}
    assert merged["fc/W"].dtype == np.float32
    expected = np.max([state["fc/W"].astype("float64") for state in states], 0).astype("float32")
    np.testing.assert_array_equal(merged["fc/W"], expected)


def test_a_function_of_one_state_is_given_what_it_cannot_write_to():
    def in_place(array):
        array += 1
        return array

    with pytest.raises(ValueError, match="read-only"):
        map_states(in_place, trained(0, "float32"))
    np.testing.assert_array_equal(map_states(np.sign, trained(0))["fc/W"], np.sign(trained(0)["fc/W"]))


def test_complex_leaves_stay_complex():
    one, other = State({"w": [1 + 2j]}), State({"w": [3 - 2j]})
    assert average([one, other])["w"] == 2
    assert norms(State({"w": [3 + 4j]})) == {"w": 5.0}
    assert map_states(np.conj, one)["w"] == 1 - 2j


def test_norms_and_cosines_are_those_of_each_leaf():
    one, other = trained(0), trained(1)
    a, b = one["fc/W"], other["fc/W"]
    assert list(norms(one)) == ["fc/W", "fc/b", "bn/running_mean"]
    assert norms(one, where="fc/W") == {"fc/W": pytest.approx(np.sqrt((a**2).sum()), rel=1e-15)}
    assert norms(difference(one, other))["fc/W"] == pytest.approx(np.sqrt(((a - b) ** 2).sum()), rel=1e-14)
    assert cosines(one, other)["fc/W"] == pytest.approx((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
    assert cosines(one, one)["fc/b"] == pytest.approx(1.0)
    assert math.isnan(cosines(one, other.replace({"fc/b": 0.0}))["fc/b"])


def test_leaves_without_numbers_and_without_axes_pass():
    state = State({"empty": np.zeros((0, 3)), "scalar": 2.0})
    assert average([state, state]) == state
    assert norms(state) == {"empty": 0.0, "scalar": 2.0}


# ---- what stays


@pytest.mark.parametrize("name", ["map_states", "average", "interpolate"])
def test_keys_clocks_roles_dtypes_and_slots_are_the_firsts(name):
    first, second = trained(1, "float32"), trained(2)
    result = RULES[name](first, second)
    assert list(result) == list(first)
    assert result.roles == first.roles
    assert [array.dtype for array in result.values()] == [array.dtype for array in first.values()]
    assert int(result["adam/step_count"]) == 1
    assert result["drop/key"] is first["drop/key"]
    assert not any(array.flags.writeable for array in result.values())


@pytest.mark.parametrize("name", ["map_states", "average", "interpolate"])
def test_what_is_not_selected_is_the_firsts_and_is_not_compared(name):
    first = trained(1)
    second = trained(2).drop("bn").rename({"adam": "sgd"})
    result = RULES[name](first, second, where=Role.PARAMETER)
    assert first.diff(result).changed.keys() == {"fc/W", "fc/b"}


def test_an_integer_leaf_that_a_selector_names_stays_as_it_is():
    assert average([trained(1), trained(2)], where="adam") == trained(1)


def test_a_state_of_a_file_serves_as_well(tmp_path):
    save_state(trained(1), tmp_path / "one.safetensors")
    read = load_state(tmp_path / "one.safetensors")
    assert average([read, trained(2)]) == average([trained(1), trained(2)])


# ---- errors


@each_rule
def test_states_of_different_leaves_are_refused_with_all_differences(name):
    other = trained(1).rename({"fc/b": "fc/bias"}).replace({"fc/W": np.zeros((3, 4))}, reshape=True)
    other = other.drop("bn")
    with pytest.raises(ValueError, match=name) as raised:
        RULES[name](trained(0), other)
    for text in (
        "state 2 differs from the first",
        "only in the first: fc/b",
        "only in the first: bn/running_mean",
        "only in state 2: fc/bias",
        r"fc/W: float64[3,2] and float64[3,4]",
    ):
        assert text in str(raised.value)


@each_rule
def test_a_leaf_that_is_floating_in_one_state_alone_is_a_difference(name):
    other = trained(1).drop("fc/b") | State({"fc/b": np.zeros(2, "int64")})
    with pytest.raises(ValueError, match="only in the first: fc/b"):
        RULES[name](trained(0), other)


@each_rule
def test_a_selector_that_matches_nothing_is_an_error(name):
    with pytest.raises(KeyError, match="'fd' matches nothing in the state"):
        RULES[name](trained(0), trained(1), where="fd")


@each_rule
def test_what_is_no_state_is_refused(name):
    with pytest.raises(TypeError, match=rf"{name} takes states; got dict. Write State\(...\) around it"):
        RULES[name](trained(0), trained(1).to_dict())


def test_no_states_have_no_average():
    with pytest.raises(ValueError, match="average takes one state or more; got none"):
        average([])
    with pytest.raises(ValueError, match="map_states takes one state or more; got none"):
        map_states(np.maximum)


def test_one_state_in_the_place_of_several_is_an_error():
    with pytest.raises(TypeError, match=r"in a list, as \[one, other\]; got State"):
        average(trained(0))


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [1, 2, 3]])
def test_weights_that_make_no_average_are_refused(weights):
    with pytest.raises(ValueError, match=r"one number of 0 or more for each state.*for 2 states"):
        average([trained(0), trained(1)], weights)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_refused(weight):
    with pytest.raises(ValueError, match="a weight must be a finite number"):
        average([trained(0), trained(1)], [1, weight])


@pytest.mark.parametrize(("share", "error"), [(math.nan, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_share_is_a_finite_number(share, error):
    with pytest.raises(error, match="share must be a finite number; got"):
        interpolate(trained(0), trained(1), share)
    with pytest.raises(error, match="scale must be a finite number; got"):
        add(trained(0), scale=share)


def test_a_function_that_gives_another_shape_or_kind_is_refused():
    with pytest.raises(ValueError, match=r"gave float64\[\] for 'fc/W', which is float64\[3,2\]"):
        map_states(np.sum, trained(0))
    with pytest.raises(ValueError, match=r"complex128\[3,2\] for 'fc/W'.*gives real numbers"):
        map_states(lambda a: a * 1j, trained(0))


def test_a_whole_state_is_no_difference():
    with pytest.raises(
        TypeError, match=r"'drop/key' of difference 1 is uint32\[4\].*difference\(end, start\)"
    ):
        add(trained(0), trained(1))


def test_a_difference_of_another_network_is_refused_with_all_that_does_not_fit():
    change = difference(trained(1), trained(0))
    other = change.rename({"fc/b": "fc/bias"}).replace({"fc/W": np.zeros((5, 2))}, reshape=True)
    with pytest.raises(ValueError, match="what difference 2 holds") as raised:
        add(trained(0), change, other)
    assert "only in difference 2: fc/bias" in str(raised.value)
    assert "fc/W: float64[3,2] and float64[5,2]" in str(raised.value)


def test_what_cannot_be_represented_warns_and_is_infinite():
    far = State({"w": np.full(2, 6e4, "float16")})
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(difference(far, far.map(np.negative))["w"]).all()
    assert difference(far.astype("float32"), far.map(np.negative))["w"][0] == pytest.approx(1.2e5, rel=1e-3)


def test_a_selector_by_role_or_owner_means_the_addresses_that_it_finds_in_the_first():
    leaves = [attrs.evolve(leaf, owner="Linear") for leaf in trained(0).select("fc").leaves]
    known = State.of([*leaves, *trained(0).drop("fc").leaves])
    plain = State(trained(1).to_dict(), Role.OPTIMIZER)
    of_layer = where(lambda leaf: leaf.owner == "Linear")
    mean = average([known, plain], where=of_layer)
    np.testing.assert_allclose(mean["fc/W"], (trained(0)["fc/W"] + trained(1)["fc/W"]) / 2, rtol=1e-15)
    assert mean["bn/running_mean"] is known["bn/running_mean"]
