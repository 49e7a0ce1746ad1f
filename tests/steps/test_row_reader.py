"""Spans of time as a hand-over brings them: good ones stay, others are counted."""

from __future__ import annotations

import base64
from collections import Counter

import numpy as np

import rollout_traces as rt
from rollout_traces.capture.host_copy import capture
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.spans import read_packed
from rollout_traces.steps.redact import HIDDEN, Redaction
from rollout_traces.steps.row_reader import RowReader, details_of, extra_metadata, images_of
from tests.builders import make_packed_batch
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.pictures import png

GOOD = {"kind": "generate", "start": 10.0, "end": 12.5, "turn": 0, "engine": "e0", "version": 3}


def handed_over(*timings, **more):
    ones = np.ones((len(timings), 2), int)
    return capture(
        [RolloutBatch(input_ids=ones, attention_mask=ones, loss_mask=ones, timings=list(timings), **more)],
        step=1,
        split="rollout",
    )


class TestSpans:
    def test_bad_ones_are_left_out_and_counted_and_mappings_stay(self):
        counters: Counter[str] = Counter()
        batch = handed_over([GOOD, {"kind": "generate", "start": 12}], {"generate": 2.0}, [7], None)
        labelled = RowReader(None, counters).label(batch)
        assert labelled.row_lists["timings"] == [[GOOD], {"generate": 2.0}, [], None]
        assert counters["spans_refused"] == 2
        assert any("2 of 3 could not be understood" in note for note in labelled.notes)

    def test_a_rollout_of_100000_stages_keeps_its_longest(self):
        counters: Counter[str] = Counter()
        many = [
            {"kind": "tool", "start": float(at), "end": at + (2.0 if at % 10 == 0 else 0.1)}
            for at in range(100_000)
        ]
        labelled = RowReader(None, counters).label(handed_over(many))
        (found,) = labelled.row_lists["timings"]
        assert len(found) == 10_000 and all(span["end"] - span["start"] == 2.0 for span in found)
        assert counters["spans_left_out"] == 90_000
        assert any("90,000 of 100,000, the shortest" in note for note in labelled.notes)

    def test_names_are_redacted(self):
        counters: Counter[str] = Counter()
        asked = []

        def names_secret(message):
            asked.append(message)
            return ["hunter2"] if "hunter2" in str(message) else []

        many = [{**GOOD, "name": "login hunter2"}] * 500
        batch = handed_over(many, many, {"call hunter2": 1.0})
        first, _, sums = (
            RowReader(None, counters, Redaction(names_secret, counters)).label(batch).row_lists["timings"]
        )
        assert {span["name"] for span in first} == {f"login {HIDDEN * 7}"} and list(sums) == [
            f"call {HIDDEN * 7}"
        ]
        assert len(asked) < 10, "the hook sees each name once"

    def test_they_are_stored_of_every_rollout_and_with_the_trace(self, trackio_dir):
        plan = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2, seed=1))
        timings = [[GOOD, "no span"], [{**GOOD, "start": 11.0}], [GOOD], {"generate": 1.0}]
        logger = rt.RolloutLogger(project="spans", name="a", tokenizer=tiny_tokenizer(), max_rollout_traces_per_step=1, worker="thread")  # fmt: skip
        logger.log_rollouts({**plan, "timings": timings}, step=1)
        assert logger.flush(30) and logger.counters["spans_refused"] == 1
        logger.finish()
        store = rt.open_store(project="spans")
        rows = store.rollouts(columns=["sample", "timings", "timing/generate"]).to_pylist()
        assert [row["timing/generate"] for row in rows] == [2.5, 1.5, 2.5, 1.0]
        assert [read_packed(row["timings"]) for row in rows[:3]] == [
            [GOOD],
            [{**GOOD, "start": 11.0}],
            [GOOD],
        ]
        assert rows[3]["timings"] is None
        assert "timings" not in store.ledger().columns


PNG = base64.b64encode(png()).decode()
"""The beginning of an image of one pixel."""


def with_images(*images):
    return make_packed_batch([[1, 2]], [[0, 1]], row_lists={"images": [list(images)]})


class TestImages:
    def test_are_read_from_bytes_and_from_files(self, tmp_path):
        path = tmp_path / "a.png"
        path.write_bytes(base64.b64decode(PNG))
        counters: Counter[str] = Counter()
        found = images_of(with_images({"data": PNG}, {"path": str(path)}), 0, counters)
        assert [(image.suffix, image.left_out) for image in found] == [("png", "")] * 2 and not counters
        assert found[0].data == found[1].data == path.read_bytes()

    def test_that_cannot_be_read_are_left_out_with_a_sentence_and_counted(self, tmp_path, caplog):
        counters: Counter[str] = Counter()
        odd = (
            7,
            {"left_out": "too large"},
            {"path": str(tmp_path / "no.png")},
            {"data": "!"},
            {},
            {"data": "AAAA"},
        )
        found = images_of(with_images({"data": PNG}, *odd), 0, counters)
        assert not found[0].left_out and all(image.left_out and not image.data for image in found[1:])
        assert found[1].left_out == "seen int. Expected a path or bytes." and found[2].left_out == "too large"
        assert counters == {"images_left_out": 6}
        assert "image 2 of 0123456789ab-0 was left out: seen int" in caplog.text

    def test_that_a_hook_names_anything_for_are_hidden(self, tmp_path):
        counters: Counter[str] = Counter()
        asked = []

        def hook(message):
            asked.append((message["role"], message["content"]))
            return ["secret"] if "secret" in message["content"] else []

        found = images_of(with_images({"data": PNG}, {"path": "secret.png", "data": PNG}), 0, counters, hook)
        assert asked == [("image", ""), ("image", "secret.png")]
        assert [image.left_out for image in found] == ["", "hidden by the run's redact hook."]
        assert counters == {"images_redacted": 1, "images_left_out": 1}

    def test_that_a_hook_fails_for_are_hidden_too(self):
        def fails(message):
            raise ValueError("no")

        counters: Counter[str] = Counter()
        (found,) = images_of(with_images({"data": PNG}), 0, counters, fails)
        assert not found.data and counters == {"redact_errors": 1, "images_left_out": 1}

    def test_of_a_row_without_any_are_none(self):
        assert images_of(make_packed_batch([[1]], [[1]]), 0, Counter()) == ()


class TestWhatALedgerLacks:
    def test_is_told_of_a_row_with_tokens(self):
        lists = {
            "extras": [{"ids_from": "re-encoded", "n": 1, "deep": [1]}],
            "parsed_answers": ["x" * 201],
            "ground_truths": [4],
        }
        batch = make_packed_batch([[1, 2, 3]], [[0, 1, 1]], row_lists=lists, train_version=7)
        assert extra_metadata(batch, 4, 0) == {
            "n_tokens": 3,
            "ids_from": "re-encoded",
            "group_size": 4,
            "train_version": 7,
            "response_mask_from": "given",
            "population": 1,
            "parsed_answer": "x" * 200 + "…",
            "ground_truth": 4,
            "extra/n": 1,
        }
        assert (
            extra_metadata(make_packed_batch([[1]], [[1]], row_lists={"parsed_answers": ["x" * 200]}), 1, 0)[
                "parsed_answer"
            ]
            == "x" * 200
        )

    def test_of_a_row_that_came_without_tokens_is_unobserved(self):
        batch = make_packed_batch([[]], [[]], has_tokens=np.array([False]), row_lists={"extras": [7]})
        told = extra_metadata(batch, 1, 0)
        assert (told["n_tokens"], told["ids_from"], told["response_mask_from"]) == (None, "unobserved", None)

    def test_that_only_a_reader_of_the_trace_needs_is_its_details(self):
        lists = {
            "ground_truths": ["x" * 500],
            "engine_ids": ["e0"],
            "sample_ids": [None],
            "timings": [{"a": 1.0}],
        }
        batch = make_packed_batch([[1]], [[1]], row_lists=lists)
        assert details_of(batch, 0) == {"timings": {"a": 1.0}, "ground_truth": "x" * 500, "engine_id": "e0"}


def test_an_image_that_cannot_be_read_says_why():
    (found,) = images_of(with_images({"data": "no base64!"}), 0, Counter())
    assert "base64" in found.left_out and not found.data
