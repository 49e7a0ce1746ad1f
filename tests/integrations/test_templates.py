"""A trainer's own chat template and its arguments reach the decoder, also in the process beside the trainer."""

from __future__ import annotations

import copy
import sqlite3
from types import SimpleNamespace

import orjson
import pytest

import rollout_traces as rt
from rollout_traces.decode import Closer, Opener, TemplateMarkers
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.errors import ConfigError
from rollout_traces.integrations import areal, trl
from tests.generator import tiny_tokenizer

TEMPLATE = """\
{%- set open, close = ("### ", "\\n\\n") if plain else ("<|im_start|>", "<|im_end|>\\n") -%}
{%- for message in messages -%}
{{ open + message.role + "\\n" + message.content + close }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ open + "assistant\\n" + ("" if think else "<think>\\n\\n</think>\\n\\n") }}
{%- endif -%}"""
"""Markers and generation prompt both hang on an argument."""
PLAIN = {"plain": True}
MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 6*7?"},
]
ANSWER = "42."


def tokenizer_with(template: str | None):
    tokenizer = copy.deepcopy(tiny_tokenizer("qwen3"))
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def batch_of(template: str, **arguments) -> rt.RolloutBatch:
    """One rollout as a trainer makes it: the rendered prompt, and what was sampled."""
    tokenizer = tokenizer_with(template)
    prompt = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False, **arguments
    )
    sampled = tokenizer.encode(ANSWER, add_special_tokens=False)
    n = len(prompt) + len(sampled)
    mask = [[0] * len(prompt) + [1] * len(sampled)]
    return rt.RolloutBatch(
        input_ids=[[*prompt, *sampled]], attention_mask=[[1] * n], loss_mask=mask, rewards=[1.0]
    )


def stored_messages(folder, worker: str, tokenizer, batch, **options) -> tuple[list[tuple[str, str]], str]:
    """(role, content) of the one trace that a logger stores, and where it was processed."""
    logger = rt.RolloutLogger(
        "p", "r", tokenizer, max_rollout_traces_per_step=1, selection="all", worker=worker, **options
    )
    logger.log_rollouts(batch, step=0)
    where = logger.worker
    assert logger.finish(180)
    with sqlite3.connect(folder / "p.db") as db:
        [(messages,)] = db.execute(
            "select messages from traces where key = 'rollout/trajectories'"
        ).fetchall()
    return [(message["role"], message["content"]) for message in orjson.loads(messages)], where


TOLD = [("system", "Be short."), ("user", "What is 6*7?"), ("assistant", ANSWER)]


@pytest.mark.parametrize("worker", ["process", "thread"])
class TestTheLogger:
    def test_arguments_that_change_the_markers_decode_right(self, worker, trackio_dir):
        messages, where = stored_messages(
            trackio_dir,
            worker,
            tokenizer_with(TEMPLATE),
            batch_of(TEMPLATE, **PLAIN, think=True),
            chat_template_kwargs=PLAIN,
        )
        assert (messages, where) == (TOLD, worker)

    def test_without_them_no_marker_is_found_and_the_prompt_stays_in_one_piece(self, worker, trackio_dir):
        messages, _ = stored_messages(
            trackio_dir, worker, tokenizer_with(TEMPLATE), batch_of(TEMPLATE, **PLAIN, think=True)
        )
        assert messages == [
            ("user", "### system\nBe short.\n\n### user\nWhat is 6*7?\n\n### assistant\n"),
            TOLD[2],
        ]

    def test_a_template_that_is_not_the_tokenizers_decodes_right(self, worker, trackio_dir):
        messages, where = stored_messages(
            trackio_dir,
            worker,
            tokenizer_with(None),
            batch_of(TEMPLATE, **PLAIN, think=True),
            chat_template=TEMPLATE,
            chat_template_kwargs=PLAIN,
        )
        assert (messages, where) == (TOLD, worker)

    def test_a_dialect_reaches_the_process_too(self, worker, trackio_dir):
        dialect = TemplateMarkers(
            openers=tuple(Opener(role, f"### {role}\n") for role in ("system", "user", "assistant")),
            closers=(Closer("\n\n"),),
        )
        messages, where = stored_messages(
            trackio_dir,
            worker,
            tokenizer_with(None),
            batch_of(TEMPLATE, **PLAIN, think=True),
            dialect=dialect,
        )
        assert (messages, where) == (TOLD, worker)


class TestSettings:
    def test_what_json_cannot_hold_stays_in_this_process(self):
        assert DecodeSettings(chat_template_kwargs={"now": object()}).as_plain() is None
        assert DecodeSettings(chat_template_kwargs={"ids": (1, 2)}).as_plain() is None
        assert DecodeSettings(dialect=SimpleNamespace(openers=())).as_plain() is None  # type: ignore[arg-type]

    @pytest.mark.parametrize("dialect", ["qwen3", object()])
    def test_a_dialect_that_is_none_is_refused(self, dialect):
        with pytest.raises(
            ConfigError, match=r"dialect: seen .*Expected a rollout_traces.decode.TemplateMarkers"
        ):
            DecodeSettings(dialect)

    def test_plain_values_come_back_after_json(self):
        dialect = TemplateMarkers(openers=(Opener("user", "<u>"),), header=("<", ">"), terminators=("x",))
        settings = DecodeSettings(dialect, TEMPLATE, {"enable_thinking": False, "documents": [{"a": 1}]})
        assert DecodeSettings.from_plain(orjson.loads(orjson.dumps(settings.as_plain()))) == settings
        assert DecodeSettings.from_plain({}) == DecodeSettings()

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"chat_template": 3}, "chat_template: seen int"),
            ({"chat_template_kwargs": "x"}, "chat_template_kwargs: seen 'x'"),
        ],
    )
    def test_what_is_no_template_is_refused_by_name(self, options, named):
        with pytest.raises(ConfigError, match=named):
            rt.RolloutLogger("p", **options)

    def test_the_template_is_rendered_again_with_the_same_arguments(self):
        decoder = rt.TranscriptDecoder(tokenizer_with(TEMPLATE), chat_template_kwargs=PLAIN)
        assert decoder.tokenizer.apply_chat_template(MESSAGES, tokenize=False).startswith("### system\n")
        assert len(copy.copy(decoder.tokenizer)) == len(tokenizer_with(None))


class RlvrLike:
    """A workflow that says how it renders prompts, as AReaL's `RLVRWorkflow` does."""

    def __init__(self, reward_fn, tokenizer, enable_thinking: bool = False) -> None:
        self.tokenizer, self.enable_thinking = tokenizer, enable_thinking


class TestAreal:
    def test_a_built_workflow_says_its_arguments(self):
        workflow = RlvrLike(None, tokenizer_with(None), enable_thinking=True)
        assert areal.template_of(workflow, {}, tokenizer_with(None)) == {
            "chat_template_kwargs": {"enable_thinking": True}
        }

    def test_a_class_is_built_with_its_own_defaults_where_the_config_says_nothing(self):
        tokenizer = tokenizer_with(None)
        own = areal.template_of(RlvrLike, {}, tokenizer)
        said = areal.template_of(RlvrLike, {"enable_thinking": True}, tokenizer)
        assert own == {"chat_template_kwargs": {"enable_thinking": False}}
        assert said == {"chat_template_kwargs": {"enable_thinking": True}}

    def test_an_import_path_says_what_its_class_says(self):
        path = f"{__name__}.RlvrLike"
        assert areal.template_of(path, {}, None) == {"chat_template_kwargs": {"enable_thinking": False}}
        assert areal.template_of("not.imported.Workflow", {}, None) == {}

    def test_a_workflows_tokenizer_with_another_template_says_which(self):
        said = {"tokenizer": tokenizer_with(TEMPLATE), "chat_template_kwargs": PLAIN}
        assert areal.template_of(None, said, tokenizer_with(None)) == {
            "chat_template": TEMPLATE,
            "chat_template_kwargs": PLAIN,
        }

    def test_an_agent_says_nothing(self):
        assert areal.template_of(SimpleNamespace(run=None), {}, tokenizer_with(None)) == {}


class TestTrl:
    def said(self, **trainer) -> dict:
        defaults = {"_tokenizer": tokenizer_with(None), "args": SimpleNamespace()}
        return trl._TrlObserver(
            "trl", SimpleNamespace(**{**defaults, **trainer}), None, {}
        )._said_by_trainer()

    def test_the_configs_arguments_are_the_decoders(self):
        assert self.said(chat_template_kwargs=PLAIN)["chat_template_kwargs"] == PLAIN

    def test_the_trainers_own_template_is_the_one_that_is_learned(self):
        assert self.said(chat_template=TEMPLATE)["chat_template"] == TEMPLATE
        assert self.said(chat_template=None)["chat_template"] is None

    def test_a_processors_template_is_used_where_its_tokenizer_has_another(self):
        assert (
            self.said(processing_class=SimpleNamespace(chat_template=TEMPLATE))["chat_template"] == TEMPLATE
        )
