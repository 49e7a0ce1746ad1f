"""The histogram of a step's loss tokens answers what a clipping rule would have done, in ten kilobytes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.ledger.loss_histogram import EDGES, MAX_BYTES, joined, loss_histogram, pack, unpack
from tests.steps.test_open_step import rows_of


def step_of(n_rows: int = 64, length: int = 200, **lists):
    rng = np.random.default_rng(0)
    batch = rows_of([length] * n_rows, [row // 4 for row in range(n_rows)])
    n = n_rows * length
    tracks = {
        "logprobs": np.full(n, -1.0, np.float32),
        "prox_logprobs": (-1 + 0.1 * rng.normal(size=n)).astype(np.float32),
        "new_logprobs": (-1 + 0.3 * rng.normal(size=n)).astype(np.float32),
        "advantages": rng.normal(size=n).astype(np.float32),
        "versions": rng.integers(0, 6, n).astype(np.int32),
    }
    return replace(batch, tracks=tracks, train_version=5, row_lists=lists)


def test_every_loss_token_is_in_one_cell():
    batch = step_of()
    found = loss_histogram(batch)
    assert found.tokens.sum() == batch.loss_mask.sum()
    assert found.weight.sum() == pytest.approx(np.abs(batch.tracks["advantages"][batch.loss_mask]).sum())


def test_every_token_falls_into_the_cell_of_what_it_is():
    """Ten rows of one source each, and one of none; what is odd about a token is unknown in its cell."""
    n_rows, length = 11, 6
    sources = [*(f"s{row}" for row in range(10)), None]
    batch = step_of(n_rows, length, sources=sources, discard_reasons=[None] * 9 + ["late", None])
    n = n_rows * length
    tracks = {name: values.copy() for name, values in batch.tracks.items()}
    tracks["versions"] = (np.arange(n) % 8 - 1).astype(np.int32)
    tracks["loss_weights"] = np.where(np.arange(n) % 5, 0.5, np.nan).astype(np.float32)
    tracks["advantages"][::7] = np.nan
    tracks["advantages"][::11] = 0.0
    tracks["new_logprobs"][::9] = np.nan
    mask = np.arange(n) % length % 3 > 0
    batch = replace(batch, tracks=tracks, response_mask=mask, loss_mask=mask.copy())
    found = loss_histogram(batch)
    kept = [f"s{row}" for row in range(7)]
    assert found.sources == (*kept, "other") and found.edges == EDGES

    expected: dict[tuple[int, ...], list[float]] = {}
    for at in np.flatnonzero(mask):
        row, place = divmod(at, length)
        if row == 9:
            continue
        bins = [
            -1 if np.isnan(d) else sum(edge <= d for edge in EDGES)
            for d in (float(tracks[f"{name}_logprobs"][at]) + 1.0 for name in ("new", "prox"))
        ]
        a, weight, version = tracks["advantages"][at], tracks["loss_weights"][at], tracks["versions"][at]
        sign = 2 if np.isnan(a) else int(np.sign(a))
        staleness = -1 if version < 0 else min(5 - version, 3) if version <= 5 else 0
        source = -1 if row == 10 else min(row, 7)
        cell = expected.setdefault((*bins, sign, staleness, source, place // 3), [0, 0.0])
        cell[0] += 1
        cell[1] += 0.0 if np.isnan(a) else abs(float(a)) * (1.0 if np.isnan(weight) else 0.5)
    names = ("new", "prox", "sign", "staleness", "source", "turn")
    cells = zip(*(found.cells[name].tolist() for name in names), strict=True)
    assert dict(zip(cells, found.tokens.tolist(), strict=True)) == {
        key: count for key, (count, _) in expected.items()
    }
    assert found.weight == pytest.approx([expected[key][1] for key in sorted(expected)])


def test_turns_past_the_third_share_a_cell():
    batch = step_of(1, 12)
    mask = np.arange(12) % 2 > 0
    found = loss_histogram(replace(batch, response_mask=mask, loss_mask=mask.copy()))
    assert {turn: found.tokens[found.cells["turn"] == turn].sum() for turn in range(4)} == {
        0: 1,
        1: 1,
        2: 1,
        3: 3,
    }


def test_a_step_all_of_which_was_left_out_has_none():
    assert loss_histogram(step_of(2, discard_reasons=["late", "late"])) is None


def test_what_was_not_given_is_unknown_in_every_cell():
    batch = step_of(2)
    tracks = {name: batch.tracks[name] for name in ("logprobs", "prox_logprobs")}
    found = loss_histogram(replace(batch, tracks=tracks, train_version=None))
    assert {name: set(found.cells[name].tolist()) for name in ("new", "sign", "staleness", "source")} == {
        "new": {-1},
        "sign": {2},
        "staleness": {-1},
        "source": {-1},
    }
    assert found.tokens.sum() == batch.loss_mask.sum() and found.weight.sum() == 0


def test_a_clipping_rule_at_an_edge_is_answered_exactly():
    batch = step_of()
    found = loss_histogram(batch)
    limit = math.log(1.28)
    cut = found.cells["new"] > found.edges.index(limit)
    positive = found.cells["sign"] == 1
    d = (batch.tracks["new_logprobs"] - batch.tracks["logprobs"].astype(np.float64))[batch.loss_mask]
    a = batch.tracks["advantages"][batch.loss_mask]
    assert limit in EDGES
    assert found.tokens[cut & positive].sum() == ((d >= limit) & (a > 0)).sum()


def test_discarded_rows_are_left_out():
    batch = step_of(4, discard_reasons=[None, "too_long", None, None])
    assert loss_histogram(batch).tokens.sum() == 3 * 199


def test_it_fits_and_comes_back_from_json():
    sources = [f"source {row % 20}" for row in range(256)]
    found = loss_histogram(step_of(256, 400, sources=sources))
    values = pack(found)
    assert len(str(values)) <= MAX_BYTES
    again = unpack(values)
    np.testing.assert_array_equal(again.tokens, found.tokens)
    np.testing.assert_allclose(again.weight, found.weight, rtol=1e-6)
    for name, cells in found.cells.items():
        np.testing.assert_array_equal(again.cells[name], cells)


def test_bins_are_merged_before_turns_and_sources():
    found = loss_histogram(step_of(256, 400, sources=[f"source {row % 3}" for row in range(256)]))
    assert len(found.edges) < len(EDGES)
    assert set(found.edges) < set(EDGES)
    assert len(set(found.cells["source"].tolist())) == 3


def test_without_logprobs_to_compare_there_is_none():
    assert loss_histogram(rows_of([5], [0])) is None


@pytest.mark.parametrize("left", [0, 40, -4])
def test_a_damaged_one_is_refused(left):
    with pytest.raises(StoreError, match="loss histogram: damaged"):
        unpack(pack(loss_histogram(step_of(4)))[:left])


def test_one_with_columns_of_different_lengths_is_refused():
    found = loss_histogram(step_of(4))
    with pytest.raises(StoreError, match="columns of different lengths"):
        unpack(pack(replace(found, weight=found.weight[:-1])))


def test_parts_of_a_step_are_one_with_the_edges_and_sources_that_they_share():
    whole = loss_histogram(step_of(256, 400, sources=[f"source {row % 3}" for row in range(256)]))
    late = loss_histogram(step_of(4, sources=["source 2", "source 2", "new", None]))
    found = joined([whole, late])
    assert len(whole.edges) < len(late.edges) and found.edges == whole.edges
    assert found.sources == ("source 0", "source 1", "source 2", "new")
    assert found.tokens.sum() == whole.tokens.sum() + late.tokens.sum()
    assert found.weight.sum() == pytest.approx(whole.weight.sum() + late.weight.sum())
    of = lambda part, name: part.tokens[part.cells["source"] == part.sources.index(name)].sum()  # noqa: E731
    assert of(found, "source 2") == of(whole, "source 2") + of(late, "source 2")
    assert of(found, "new") == of(late, "new") == 199
    assert found.tokens[found.cells["source"] == -1].sum() == 199


def test_of_many_parts_the_sources_beyond_the_first_are_other():
    parts = [loss_histogram(step_of(2, sources=[f"{part} a", f"{part} b"])) for part in range(6)]
    found = joined(parts)
    assert len(found.sources) == 8 and found.sources[-1] == "other"
    assert found.tokens[found.cells["source"] == 7].sum() == 5 * 199
