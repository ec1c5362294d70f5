"""Loaders: what they take, what they hand out, and how a position is saved and resumed."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptml.data import DataLoader

BIG = 9007199254740993  # 2**53 + 1, the first whole number that float64 cannot hold


def rows_of(loader):
    """Give the rows of each batch of one epoch, for a loader over numbered rows."""
    return [batch.tolist() for (batch,) in loader]


def numbered(rows, **options):
    return DataLoader(np.arange(rows), **options)


class TestWhatIsTaken:
    @pytest.mark.parametrize("lengths", [(3, 5), (5, 3)])
    def test_arrays_of_different_length_are_refused_with_both_lengths(self, lengths):
        X, y = np.zeros((lengths[0], 2)), np.zeros(lengths[1])
        with pytest.raises(ValueError, match=f"array 0 has {lengths[0]} and array 1 has {lengths[1]}"):
            DataLoader(X, y, batch_size=2)

    def test_the_array_that_differs_is_named_by_its_position(self):
        with pytest.raises(ValueError, match="array 0 has 4 and array 2 has 1"):
            DataLoader(np.zeros(4), np.zeros(4), np.zeros((1, 4)), batch_size=2)

    @pytest.mark.parametrize("empty", [np.zeros((0, 3)), []])
    def test_an_empty_dataset_is_refused(self, empty):
        with pytest.raises(ValueError, match="dataset is empty"):
            DataLoader(empty, batch_size=2)

    def test_no_array_at_all_is_refused(self):
        with pytest.raises(TypeError, match="at least one array"):
            DataLoader(batch_size=2)

    @pytest.mark.parametrize("batch_size", [0, -1, np.int64(-3)])
    def test_a_batch_size_below_one_is_refused(self, batch_size):
        with pytest.raises(ValueError, match="batch_size must be a whole number, at least 1; got"):
            numbered(4, batch_size=batch_size)

    @pytest.mark.parametrize("batch_size", [2.5, 2.0, True, np.True_, "2", None])
    def test_a_batch_size_that_is_no_whole_number_is_refused(self, batch_size):
        with pytest.raises(TypeError, match="batch_size must be a whole number, at least 1; got"):
            numbered(4, batch_size=batch_size)

    def test_a_numpy_integer_is_a_batch_size(self):
        assert rows_of(numbered(3, batch_size=np.int32(2))) == [[0, 1], [2]]

    @pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (0.5, TypeError), (False, TypeError)])
    def test_a_seed_that_is_no_whole_number_is_refused_even_when_unused(self, seed, error):
        with pytest.raises(error, match="seed must be a whole number, at least 0; got"):
            numbered(4, batch_size=2, seed=seed)

    @pytest.mark.parametrize("option", ["shuffle", "drop_last"])
    def test_switches_take_booleans_only(self, option):
        with pytest.raises(TypeError, match=f"{option} must be True or False; got 'no'"):
            numbered(4, batch_size=2, **{option: "no"})

    def test_dropping_the_only_batch_is_refused(self):
        with pytest.raises(ValueError, match="drop_last=True leaves no batch: the dataset has 3 rows"):
            numbered(3, batch_size=4, drop_last=True)

    def test_a_batch_size_beyond_the_rows_gives_one_short_batch(self):
        assert rows_of(numbered(3, batch_size=100)) == [[0, 1, 2]]

    def test_lists_are_read_as_arrays(self):
        ((X, y),) = DataLoader([[1.0, 2.0], [3.0, 4.0]], [0, 1], batch_size=2)
        assert X.dtype == np.float64
        assert X.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert y.dtype == np.int64
        assert y.tolist() == [0, 1]

    def test_anything_that_numpy_reads_as_an_array_is_taken(self):
        class Column:
            def __array__(self, dtype=None, copy=None):
                return np.array([1, 2, 3], dtype="int16")

        ((column, traced),) = DataLoader(Column(), jnp.arange(3, dtype="int32"), batch_size=3)
        assert type(traced) is np.ndarray
        assert column.dtype == np.int16
        assert column.tolist() == [1, 2, 3]
        assert traced.dtype == np.int32
        assert traced.tolist() == [0, 1, 2]

    def test_ragged_lists_are_refused_with_what_is_accepted(self):
        with pytest.raises(
            TypeError, match=r"Array 1, a list, cannot be read.*lists whose rows all have one"
        ):
            DataLoader([1, 2], [[1], [2, 3]], batch_size=2)

    def test_arrays_given_as_one_tuple_are_refused_with_the_way_to_write_it(self):
        with pytest.raises(TypeError, match=r"one by one: DataLoader\(X, y, batch_size=32\)"):
            DataLoader((np.zeros((4, 2)), np.zeros(4)), batch_size=2)

    @pytest.mark.parametrize(
        "value",
        [
            np.array([1, None]),
            ["cat", "dog"],
            np.array(["2024-01-01"], dtype="datetime64[D]"),
            {"X": 1},
            None,
            [2**70],
        ],
        ids=["object", "text", "dates", "dict", "None", "beyond uint64"],
    )
    def test_what_is_not_numbers_is_refused_with_what_is_accepted(self, value):
        with pytest.raises(TypeError, match=r"Array 0, a .* reads as dtype .* takes numbers or booleans"):
            DataLoader(value, batch_size=1)

    def test_a_single_number_is_refused(self):
        with pytest.raises(TypeError, match="single number 32: it has no rows"):
            DataLoader(np.zeros(32), 32, batch_size=1)

    def test_a_masked_array_is_refused_rather_than_unmasked(self):
        with pytest.raises(TypeError, match="masked array, whose mask would be lost"):
            DataLoader(np.ma.masked_array([1.0, 2.0], mask=[True, False]), batch_size=1)


class TestDtypes:
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize(
        "dtype", ["bool", "int8", "int64", "uint64", "float16", "float32", "float64", "complex64"]
    )
    def test_dtypes_are_kept(self, dtype, shuffle):
        for (batch,) in DataLoader(np.ones((5, 2), dtype=dtype), batch_size=2, shuffle=shuffle):
            assert batch.dtype == np.dtype(dtype)

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("read", [list, lambda ids: np.array(ids, dtype="int64")], ids=["list", "array"])
    def test_large_ids_keep_their_value(self, read, shuffle):
        ids, labels = read([[BIG]]), read([7])
        loader = DataLoader(ids, labels, batch_size=4, shuffle=shuffle, float_dtype="float32")
        ((id_batch, label_batch),) = loader
        assert id_batch.dtype == label_batch.dtype == np.int64
        assert id_batch.tolist() == [[BIG]]
        assert label_batch.tolist() == [7]

    @pytest.mark.parametrize("ids", [[2**63 + 1, 1], [BIG, 0.5], [[1.0], [-BIG]], [float("nan"), BIG]])
    def test_a_list_that_numpy_would_round_is_refused(self, ids):
        with pytest.raises(TypeError, match=r"NumPy reads as float64, which cannot hold its value -?9"):
            DataLoader(ids, batch_size=1)

    def test_foreign_byte_order_is_turned_with_values_kept(self):
        ((batch,),) = DataLoader(np.array([BIG, 1], dtype=">i8"), batch_size=2)
        assert batch.dtype == np.dtype("int64")
        assert batch.dtype.isnative
        assert batch.tolist() == [BIG, 1]

    @pytest.mark.parametrize("values", [[1e300, float("nan"), float("inf")], [2**60, 0.5]])
    def test_a_list_of_large_floats_is_taken(self, values):
        ((batch,),) = DataLoader(values, batch_size=3)
        np.testing.assert_array_equal(batch, np.array(values, dtype="float64"))

    def test_float_dtype_casts_floating_arrays_and_no_others(self):
        arrays = [np.array([0.1, 0.2]), np.array([0.5, 1.0], "float16"), np.array([1, 2]), np.array([1j, 2j])]
        loader = DataLoader(*arrays, batch_size=2, float_dtype="float32")
        ((wide, narrow, whole, imaginary),) = loader
        assert [a.dtype.name for a in (wide, narrow, whole)] == ["float32", "float32", "int64"]
        assert imaginary.dtype == np.complex128
        np.testing.assert_array_equal(wide, np.array([0.1, 0.2], dtype="float32"))
        assert narrow.tolist() == [0.5, 1.0]
        assert loader.arrays[0].dtype == np.float32

    def test_an_array_of_float_dtype_already_is_not_copied(self):
        X = np.ones(3, dtype="float32")
        assert np.shares_memory(DataLoader(X, batch_size=1, float_dtype="float32").arrays[0], X)

    @pytest.mark.parametrize("dtype", ["int64", "flaot32", bool])
    def test_a_float_dtype_that_is_not_floating_is_refused(self, dtype):
        with pytest.raises(TypeError, match="float_dtype must be a floating dtype"):
            DataLoader(np.ones(3), batch_size=1, float_dtype=dtype)

    def test_a_cast_that_overflows_is_refused(self):
        with pytest.raises(ValueError, match=r"Array 1 \(float64\) has finite values too large"):
            DataLoader(np.ones(2), np.array([1e300, 1.0]), batch_size=1, float_dtype="float32")

    def test_infinities_and_nans_that_were_there_are_cast(self):
        ((batch,),) = DataLoader([np.inf, -np.inf, np.nan], batch_size=3, float_dtype="float32")
        np.testing.assert_array_equal(batch, np.array([np.inf, -np.inf, np.nan], dtype="float32"))


class TestBatches:
    def test_rows_of_all_arrays_stay_together(self):
        X = np.arange(14.0).reshape(7, 2)
        for X_batch, y_batch in DataLoader(X, np.arange(7), batch_size=3, shuffle=True):
            np.testing.assert_array_equal(X_batch, X[y_batch])

    def test_a_batch_of_one_array_is_a_tuple_of_one(self):
        (batch,) = numbered(2, batch_size=2)
        assert type(batch) is tuple
        assert len(batch) == 1

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_editing_a_batch_changes_neither_the_data_nor_later_epochs(self, shuffle):
        X = np.arange(6.0)
        loader = DataLoader(X, batch_size=4, shuffle=shuffle)
        for (batch,) in loader:
            batch[:] = -1
        np.testing.assert_array_equal(X, np.arange(6.0))
        assert sorted(itertools.chain.from_iterable(rows_of(loader))) == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_batches_are_contiguous_whatever_the_layout_of_the_data(self, shuffle):
        X = np.asfortranarray(np.arange(12.0).reshape(4, 3))
        for given_as in (X, X[:, ::-1], X[::-1]):
            for (batch,) in DataLoader(given_as, batch_size=3, shuffle=shuffle):
                assert batch.flags.c_contiguous
                assert batch.flags.writeable

    def test_the_data_is_neither_copied_nor_locked(self):
        X = np.zeros((4, 2))
        loader = DataLoader(X, batch_size=4)
        assert np.shares_memory(loader.arrays[0], X)
        X[0] = 5.0
        ((batch,),) = loader
        assert batch[0].tolist() == [5.0, 5.0]

    def test_the_arrays_of_a_loader_are_read_only(self):
        loader = numbered(4, batch_size=2)
        with pytest.raises(ValueError, match="read-only"):
            loader.arrays[0][0] = 1

    def test_the_repr_shows_dtypes_shapes_and_settings(self):
        X, y = np.zeros((60, 28, 28), dtype="float32"), np.zeros(60, dtype="int64")
        assert repr(DataLoader(X, y, batch_size=8)) == (
            "DataLoader(float32[60,28,28], int64[60], batch_size=8)"
        )
        assert repr(DataLoader(X, batch_size=8, shuffle=True, seed=4, drop_last=True)) == (
            "DataLoader(float32[60,28,28], batch_size=8, shuffle=True, seed=4, drop_last=True)"
        )

    def test_sizes_can_be_read_and_not_written(self):
        loader = numbered(10, batch_size=4)
        assert (len(loader), loader.rows, loader.batch_size) == (3, 10, 4)
        with pytest.raises(AttributeError, match="batch_size"):
            loader.batch_size = 2


class TestOrder:
    def test_rows_come_as_they_lie_unless_shuffled(self):
        loader = numbered(5, batch_size=2, seed=9)
        assert rows_of(loader) == rows_of(loader) == [[0, 1], [2, 3], [4]]
        assert loader.seed is None

    @pytest.mark.parametrize("seed", [0, 5, 2**40, 2**130])
    def test_the_order_sorts_the_rows_by_raw_bits_of_seed_and_epoch(self, seed):
        loader = numbered(50, batch_size=50, shuffle=True, seed=seed)
        for epoch in range(3):
            bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,)))
            keys = [int(bits.random_raw()) for _ in range(50)]
            assert rows_of(loader) == [sorted(range(50), key=keys.__getitem__)]

    def test_the_order_is_the_same_in_every_version(self):
        # Positions saved today must hold tomorrow: these lists may never change.
        loader = numbered(8, batch_size=8, shuffle=True, seed=0)
        assert rows_of(loader) == [[6, 3, 1, 4, 5, 2, 7, 0]]
        assert rows_of(loader) == [[1, 3, 6, 2, 0, 7, 5, 4]]

    def test_epochs_and_seeds_differ_and_repeat(self):
        def stream(seed):
            loader = numbered(20, batch_size=20, shuffle=True, seed=seed)
            return [tuple(rows_of(loader)[0]) for _ in range(4)]

        assert stream(1) == stream(1)
        assert len({*stream(0), *stream(1), *stream(2**32)}) == 12

    def test_the_order_does_not_depend_on_the_global_generator_nor_touch_it(self):
        np.random.seed(0)  # noqa: NPY002  the global generator is what this test is about
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        first = rows_of(numbered(9, batch_size=2, shuffle=True))
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
        np.random.seed(1)  # noqa: NPY002
        assert rows_of(numbered(9, batch_size=2, shuffle=True)) == first

    def test_all_orders_are_equally_likely(self):
        loader = numbered(3, batch_size=3, shuffle=True, seed=12)
        counts = Counter(tuple(rows_of(loader)[0]) for _ in range(3000))
        chi_squared = sum((counts[order] - 500) ** 2 / 500 for order in itertools.permutations(range(3)))
        assert sum(counts.values()) == 3000
        assert chi_squared < 20.5  # 0.999 quantile with 5 degrees of freedom

    def test_a_drawn_seed_is_reported_and_differs_between_loaders(self):
        first, second = (numbered(4, batch_size=2, shuffle=True, seed=None) for _ in range(2))
        assert first.seed != second.seed
        repeated = numbered(4, batch_size=2, shuffle=True, seed=first.seed)
        assert rows_of(repeated) == rows_of(first)


class TestPosition:
    def test_a_finished_epoch_leads_to_the_start_of_the_next(self):
        loader = numbered(5, batch_size=2)
        seen = []
        for epoch in range(loader.epoch, 2):
            for _ in loader:
                seen.append((epoch, loader.epoch, loader.state["batch"]))
        assert seen == [(0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 1, 1), (1, 1, 2), (1, 1, 3)]
        assert (loader.epoch, loader.state["batch"]) == (2, 0)

    def test_the_state_is_plain_numbers_that_survive_json(self):
        loader = numbered(5, batch_size=np.int64(2), shuffle=np.True_, seed=np.uint32(7))
        next(iter(loader))
        expected = {
            "epoch": 0,
            "batch": 1,
            "rows": 5,
            "batch_size": 2,
            "shuffle": True,
            "seed": 7,
            "drop_last": False,
        }
        assert json.loads(json.dumps(loader.state)) == loader.state == expected

    def test_a_state_is_a_snapshot(self):
        loader = numbered(4, batch_size=2)
        before = loader.state
        before["epoch"] = 99
        rows_of(loader)
        assert before["batch"] == 0
        assert loader.epoch == 1

    def test_looking_at_a_first_batch_takes_no_rows_from_the_next_loop(self):
        loader = numbered(4, batch_size=2)
        assert next(iter(loader))[0].tolist() == [0, 1]
        assert next(iter(loader))[0].tolist() == [0, 1]
        assert rows_of(loader) == [[0, 1], [2, 3]]
        assert loader.epoch == 3

    def test_a_loop_left_early_is_followed_by_the_next_epoch(self):
        loader, reference = (numbered(6, batch_size=2, shuffle=True) for _ in range(2))
        epochs = [rows_of(reference) for _ in range(3)]
        for epoch in range(2):
            for (batch,) in loader:
                assert batch.tolist() == epochs[epoch][0]
                break
            assert (loader.epoch, loader.state["batch"]) == (epoch, 1)
        assert rows_of(loader) == epochs[2]

    def test_an_iterator_that_handed_out_nothing_moves_nothing(self):
        loader = numbered(4, batch_size=2)
        iter(loader)
        assert rows_of(loader) == [[0, 1], [2, 3]]
        assert loader.epoch == 1

    def test_a_loop_left_early_goes_on_when_its_own_state_is_loaded(self):
        loader = numbered(6, batch_size=2, shuffle=True)
        expected = rows_of(numbered(6, batch_size=2, shuffle=True))
        assert next(iter(loader))[0].tolist() == expected[0]
        loader.load(loader.state)
        iter(loader)  # hands out nothing, so the loop below still goes on from here
        assert rows_of(loader) == expected[1:]

    def test_a_state_of_the_last_batch_resumes_after_it_and_within_the_epoch(self):
        loader = numbered(4, batch_size=2)
        *_, saved = [loader.state for _ in loader]
        assert (saved["epoch"], saved["batch"]) == (0, 2)
        resumed = numbered(4, batch_size=2)
        resumed.load(saved)
        assert [len(rows_of(resumed)) for _ in range(resumed.epoch, 2)] == [0, 2]

    @pytest.mark.parametrize(
        "disturb", [iter, lambda loader: loader.load(loader.state)], ids=["loop", "load"]
    )
    def test_a_loop_that_was_overtaken_is_refused(self, disturb):
        loader = numbered(6, batch_size=2)
        old = iter(loader)
        next(old)
        disturb(loader)
        with pytest.raises(RuntimeError, match="another loop over the same loader started or `load`"):
            next(old)

    def test_an_overtaken_loop_that_never_started_is_refused_too(self):
        loader = numbered(6, batch_size=2)
        with pytest.raises(RuntimeError, match="one position"):
            next(zip(loader, loader, strict=True))

    def test_a_loop_within_a_loop_over_one_loader_is_refused(self):
        loader = numbered(4, batch_size=2)
        with pytest.raises(RuntimeError, match="make two loaders"):
            [rows_of(loader) for _ in loader]

    def test_a_finished_iterator_stays_finished(self):
        loader = numbered(2, batch_size=2)
        old = iter(loader)
        list(old)
        rows_of(loader)
        assert list(old) == []


class TestLoad:
    @pytest.mark.parametrize(
        ("options", "theirs", "ours"),
        [
            ({"batch_size": 3}, "batch_size=2", "batch_size=3"),
            ({"shuffle": False}, "shuffle=True, seed=0", "shuffle=False, seed=None"),
            ({"seed": 1}, "seed=0", "seed=1"),
            ({"drop_last": True}, "drop_last=False", "drop_last=True"),
            ({"rows": 7}, "rows=6", "rows=7"),
            ({"rows": 7, "batch_size": 3}, "rows=6, batch_size=2", "rows=7, batch_size=3"),
        ],
    )
    def test_a_setting_that_differs_is_named_with_both_values(self, options, theirs, ours):
        saved = numbered(6, batch_size=2, shuffle=True).state
        options = {"rows": 6, "batch_size": 2, "shuffle": True, **options}
        loader = numbered(**options)
        with pytest.raises(ValueError, match=f"saved by a DataLoader with {theirs}; this one has {ours},"):
            loader.load(saved)

    def test_the_seed_of_an_unshuffled_loader_does_not_matter(self):
        loader = numbered(6, batch_size=2, seed=1)
        loader.load(numbered(6, batch_size=2, seed=2).state | {"batch": 2})
        assert rows_of(loader) == [[4, 5]]

    def test_a_loader_with_a_drawn_seed_takes_over_the_saved_one(self):
        original, resumed = (numbered(8, batch_size=2, shuffle=True, seed=None) for _ in range(2))
        it = iter(original)
        next(it)
        resumed.load(original.state)
        assert resumed.seed == original.seed
        assert rows_of(resumed) == [batch.tolist() for (batch,) in it]
        assert rows_of(resumed) == rows_of(original)

    @pytest.mark.parametrize(
        ("change", "error", "match"),
        [
            (
                {"epoch": -1},
                ValueError,
                "epoch in a saved position must be a whole number, at least 0; got -1",
            ),
            ({"epoch": 1.0}, TypeError, "epoch in a saved position must be a whole number"),
            ({"batch": "2"}, TypeError, "batch in a saved position must be a whole number"),
            ({"batch": 4}, ValueError, "after batch 4 of an epoch that has 3"),
            ({"seed": None}, TypeError, "seed in a saved position must be a whole number"),
            ({"step": 3}, ValueError, "not the `state` of a DataLoader: it has step"),
        ],
    )
    def test_a_position_that_cannot_be_is_refused_and_changes_nothing(self, change, error, match):
        loader = numbered(6, batch_size=2, shuffle=True, seed=None)
        rows_of(loader)
        before = loader.state
        with pytest.raises(error, match=match):
            loader.load({**before, "epoch": 5, **change})
        assert loader.state == before

    def test_a_state_that_lacks_entries_is_refused(self):
        with pytest.raises(ValueError, match="it lacks rows, batch_size, shuffle, seed, drop_last"):
            numbered(6, batch_size=2).load({"epoch": 0, "batch": 1})

    def test_what_is_no_mapping_is_refused(self):
        with pytest.raises(TypeError, match="takes the `state` of a DataLoader, a mapping; got 3"):
            numbered(6, batch_size=2).load(3)


@st.composite
def settings_of_loaders(draw):
    rows = draw(st.integers(1, 40))
    drop_last = draw(st.booleans())
    batch_size = draw(st.integers(1, rows if drop_last else rows + 5))
    choices = {"shuffle": draw(st.booleans()), "seed": draw(st.integers(0, 2**70))}
    return {"rows": rows, "batch_size": batch_size, "drop_last": drop_last, **choices}


@given(settings_of_loaders(), st.integers(1, 3))
def test_an_epoch_visits_each_row_once_and_drops_only_a_short_tail(settings, epochs):
    loader = numbered(**settings)
    rows, batch_size = settings["rows"], settings["batch_size"]
    kept = rows - rows % batch_size if settings["drop_last"] else rows
    for _ in range(epochs):
        batches = rows_of(loader)
        visited = [row for batch in batches for row in batch]
        assert len(batches) == len(loader)
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert 0 < len(batches[-1]) <= batch_size
        assert len(visited) == len(set(visited)) == kept
        assert set(visited) <= set(range(rows))
        if not settings["shuffle"]:
            assert visited == list(range(kept))


@given(settings_of_loaders(), st.data())
def test_a_position_saved_after_any_batch_resumes_with_the_same_remaining_stream(settings, data):
    def run(loader, until, record):
        while loader.epoch < until:
            epoch = loader.epoch
            for (batch,) in loader:
                record.append((epoch, batch.tolist()))
                yield loader.state
            record.append((epoch, "end of epoch"))

    whole: list[tuple] = []
    resumed: list[tuple] = []
    states = [numbered(**settings).state, *run(numbered(**settings), 3, whole)]
    saved = data.draw(st.sampled_from(states))
    loader = numbered(**settings)
    loader.load(json.loads(json.dumps(saved)))
    remaining = list(run(loader, 3, resumed))

    assert remaining == states[states.index(saved) + 1 :]
    handed_out = saved["epoch"] * (len(loader) + 1) + saved["batch"]
    assert resumed == whole[handed_out:]
