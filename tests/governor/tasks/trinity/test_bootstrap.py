"""Resamples and what is made of them agree to the last bit with one draw after the other from the global stream."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.tasks.trinity import bootstrap
from governor.tasks.trinity.bootstrap import bootstrap_metric

numbers = st.floats(-1e6, 1e6) | st.integers(-1000, 1000) | st.sampled_from([0.0, 1.0])


def spread(values):
    return max(values) - min(values)


def by_the_book(data, subset_size, reduce_fns, n_bootstrap=1000, seed=42):
    """One resample after the other, from the global stream, which is put back afterwards."""
    state = np.random.get_state()  # noqa: NPY002  # the legacy stream is what is compared with
    np.random.seed(seed)  # noqa: NPY002
    results = [[] for _ in reduce_fns]
    for _ in range(n_bootstrap):
        drawn = [data[i] for i in np.random.choice(len(data), size=subset_size, replace=True)]  # noqa: NPY002
        for kept, reduce_fn in zip(results, reduce_fns, strict=True):
            kept.append(reduce_fn(drawn))
    np.random.set_state(state)  # noqa: NPY002
    return [(np.mean(kept), np.std(kept)) for kept in results]


class TestBootstrap:
    def test_known_figures(self):
        """Made with `np.random.seed(42)` and `np.random.choice` on NumPy 2.4; that stream is frozen."""
        [(mean, std), (largest, _)] = bootstrap_metric([1, 2, 3, 4, 5], 3, [np.mean, np.max])
        assert (mean, std, largest) == (3.0086666666666666, 0.8167227191648337, 4.221)

    @given(
        data=st.lists(numbers, min_size=1, max_size=40),
        subset_size=st.integers(1, 40),
        n_bootstrap=st.integers(1, 60),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_equals_the_plain_loop(self, data, subset_size, n_bootstrap, seed):
        reducers = [np.max, np.min, np.mean, max, min, np.amax, np.amin, np.median, spread, len]
        found = bootstrap_metric(data, subset_size, reducers, n_bootstrap, seed)
        assert found == by_the_book(data, subset_size, reducers, n_bootstrap, seed)

    @pytest.mark.parametrize("n", [1, 2, 7, 16, 300])
    def test_equals_the_plain_loop_at_full_size(self, n):
        data = np.random.RandomState(n).normal(size=n).tolist()
        for subset_size in (1, 2, n, 129):
            reducers = [np.max, np.min, np.mean]
            assert bootstrap_metric(data, subset_size, reducers) == by_the_book(data, subset_size, reducers)

    def test_equals_the_plain_loop_over_many_blocks(self):
        data = np.random.RandomState(3).normal(size=900).tolist()
        size = 2 * bootstrap.BLOCK
        reducers = [np.max, np.min, np.mean]
        assert bootstrap_metric(data, size, reducers, 5) == by_the_book(data, size, reducers, 5)

    @pytest.mark.parametrize("dtype", [bool, np.int32, np.uint8, np.float32])
    def test_equals_the_plain_loop_for_other_numbers(self, dtype):
        data = list(np.random.RandomState(0).normal(size=33).astype(dtype))
        reducers = [np.max, np.min, np.mean, max]
        assert bootstrap_metric(data, 20, reducers) == by_the_book(data, 20, reducers)

    def test_a_nan_takes_the_way_of_each_reducer(self):
        data = [3.0, math.nan, 1.0, 2.0]
        for seed in range(20):
            found = bootstrap_metric(data, 3, [max, min], 1, seed)
            assert np.array_equal(found, by_the_book(data, 3, [max, min], 1, seed), equal_nan=True)
        reducers = [np.max, max, min, np.nanmax]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # resamples of NaN alone
            found = bootstrap_metric(data, 3, reducers)
            expected = by_the_book(data, 3, reducers)
        assert np.array_equal(found, expected, equal_nan=True)
        assert math.isnan(found[0][0])

    def test_data_without_numbers_is_for_the_reducer_to_judge(self):
        assert bootstrap_metric(["b", "a"], 2, [lambda drawn: float("a" in drawn)]) == by_the_book(
            ["b", "a"], 2, [lambda drawn: float("a" in drawn)]
        )

    def test_leaves_the_global_random_state_alone(self):
        np.random.seed(7)  # noqa: NPY002
        before = np.random.get_state()  # noqa: NPY002
        bootstrap_metric([1.0, 2.0, 3.0], 2, [np.max], seed=987654)
        after = np.random.get_state()  # noqa: NPY002
        assert all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))

    @pytest.mark.parametrize(("data", "size", "n"), [([], 1, 10), ([1.0], 0, 10), ([1.0], 1, 0)])
    def test_refuses_nothing(self, data, size, n):
        with pytest.raises(ValueError, match="nothing to resample"):
            bootstrap_metric(data, size, [np.max], n)


class TestResamples:
    def test_small_ones_are_drawn_once(self):
        bootstrap._kept.cache_clear()
        first = list(bootstrap.resamples(10, 4, 100, 1))
        again = list(bootstrap.resamples(10, 4, 100, 1))
        assert all(a is b for a, b in zip(first, again, strict=True))
        assert bootstrap._kept.cache_info().misses == 1
        list(bootstrap.resamples(10, 4, 100, 2))
        assert bootstrap._kept.cache_info().misses == 2

    def test_the_cache_is_bounded(self):
        bootstrap._kept.cache_clear()
        size = bootstrap.KEPT_DRAWS // 1000
        for n in range(2, 40):
            kept = list(bootstrap.resamples(n, size, 1000, 1))
            assert bootstrap._kept.cache_info().currsize * sum(block.nbytes for block in kept) <= 2**25

    def test_a_matrix_too_large_is_not_kept(self):
        bootstrap._kept.cache_clear()
        size = bootstrap.KEPT_DRAWS // 1000 + 1
        assert sum(block.shape[1] for block in bootstrap.resamples(10, size, 1000, 1)) == 1000
        assert bootstrap._kept.cache_info().currsize == 0
