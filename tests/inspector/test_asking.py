"""What a page's function takes, and how what is sent becomes its arguments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.asking import Names, answer_of, as_json, parameters, read_request
from rollout_traces.inspector.workspace import EvaluationView, SplitView, Workspace


@dataclass(frozen=True)
class Asked:
    where: str = ""
    limit: int | None = None


def listed(view: SplitView, asked: Asked, step: int, names: Names = (), rest: bool = False) -> tuple:
    return view.run, view.split, asked, step, names, rest


def evaluated(view: EvaluationView) -> str:
    return view.split


class TestParameters:
    def test_a_view_and_a_dataclass_stand_for_their_fields(self):
        names = [each.name for each in parameters(listed)]
        assert names == ["project", "run", "split", "where", "limit", "step", "names", "rest"]

    def test_the_workspace_is_none_of_them(self):
        def everything(workspace: Workspace, project: str = "") -> None: ...

        assert [each.name for each in parameters(everything)] == ["project"]


class TestWhatAPageSends:
    def test_becomes_the_arguments(self):
        sent = {"project": "p", "run": "r", "step": "3", "where": "x", "names": ["a", "b"], "other": 1}
        given = read_request(listed, sent)
        assert answer_of(listed, None, given) == ("r", "rollout", Asked("x"), 3, ("a", "b"), False)

    def test_anything_but_a_mapping_is_empty(self):
        assert read_request(evaluated, ["x"]) == read_request(evaluated, None)
        assert answer_of(evaluated, None, read_request(evaluated, None)) == "eval-rollout"

    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            ({"project": 3}, "project: seen int, expected a text"),
            ({"step": "x"}, "step: seen 'x', expected a whole number"),
            ({"step": float("inf")}, "step: seen 'inf'"),
            ({"where": "x" * 10_001}, "at most 10,000"),
            ({}, "step: none named"),
            ({"step": ""}, "step: none named"),
        ],
    )
    def test_says_what_it_expected(self, sent, said):
        with pytest.raises(StoreError, match=said):
            read_request(listed, sent)

    def test_what_is_no_list_of_names_is_none(self):
        assert read_request(listed, {"step": 1, "names": "a,b"})["names"] == ()
        assert len(read_request(listed, {"step": 1, "names": ["a"] * 300})["names"]) == 200

    @pytest.mark.parametrize(("sent", "is_meant"), [("1", True), (True, True), ("0", False), (None, False)])
    def test_yes_is_one_or_true(self, sent, is_meant):
        assert read_request(listed, {"step": 1, "rest": sent})["rest"] is is_meant


def test_json_has_null_for_what_is_not_finite():
    assert as_json({"a": float("nan"), "b": np.float32(0.5), 3: Asked("x")}) == (
        b'{"a":null,"b":0.5,"3":{"where":"x","limit":null}}'
    )
