"""One dataclass holds a logger's options: every way to set one knows every field of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import orjson
import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.integrations.areal import CONFIG_FIELDS, THEIRS
from rollout_traces.logger.arguments import checked_options
from rollout_traces.settings.logger_options import (
    FULL,
    NAMED,
    SLIM,
    HookOptions,
    KeyFilter,
    LoggerOptions,
    as_environment,
    for_worker,
    option_names,
    read_environment,
    secret_names,
    variable_of,
)
from rollout_traces.spool.run_folder import RunManifest
from rollout_traces.stats.config import StatsLoggerConfig, TrackioConfig
from rollout_traces.steps.run_state import StepOptions

GIVEN = {
    "project": "p",
    "name": "run 1",
    "max_rollout_traces_per_step": 8,
    "selection": "extremes",
    "space_id": "user/space",
    "private": False,
    "server_url": "https://server.example",
    "inspector_url": "https://inspector.example",
    "resume": "must",
    "ledger": False,
    "run_settings": {"clip_low": 0.2},
    "reward_range": [0.0, 2.0],
    "metric_ranges": {"kl": {"min": 0.0, "max": 1.0, "invert": True}},
    "metric_keys": ["reward/*", "!*/std"],
    "flag_parameters": {"truncated.alert_above": 0.5},
    "all_rows_folder": "/data/rows",
    "alert_webhook": "https://hooks.example/secret",
    "max_disk_gb": 2.5,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "worker": "thread",
    "per_rank": True,
    "max_bytes_per_step": 1 << 20,
    "max_spool_bytes": 1 << 21,
    "max_step_bytes": 1 << 22,
    "quiet_seconds": 7.5,
    "join_seconds": 8.5,
    "write_seconds": 1.5,
    "announces_closes": True,
    "not_secret": ["token"],
    "quiet": True,
}
"""A value for every option that is not its default."""
LEARNT_OTHERWISE = {
    **dict.fromkeys(("project", "name", "space_id", "server_url", "private"), "the manifest's own fields"),
    **dict.fromkeys(("run_settings", "reward_range", "metric_ranges"), "the options' settings"),
    **dict.fromkeys(("chat_template", "chat_template_kwargs"), "the manifest's decoding"),
    "alert_webhook": "the worker's environment",
    **dict.fromkeys(
        (
            "resume",
            "worker",
            "per_rank",
            "max_bytes_per_step",
            "max_spool_bytes",
            "announces_closes",
            "not_secret",
            "write_seconds",
            "quiet",
        ),
        "the logger alone",
    ),
}
"""Options that the worker does not find in the manifest's options, and who else holds them."""


@pytest.fixture(params=option_names())
def option(request):
    return request.param


def test_the_values_of_this_test_are_complete_and_no_defaults():
    assert set(GIVEN) == set(option_names())
    assert not [name for name, value in GIVEN.items() if value == getattr(LoggerOptions(), name)]


class TestEveryOption:
    def test_is_an_argument_of_a_logger(self, option):
        assert option in inspect.signature(rt.RolloutLogger).parameters

    def test_is_a_field_of_the_section_of_a_config(self, option):
        config = StatsLoggerConfig.create({"trackio": {option: GIVEN[option]}}, {})
        assert getattr(config.trackio, option) == GIVEN[option]
        assert (
            TrackioConfig(mode="online", **{option: GIVEN[option]}).logger_options("e", "t")[option]
            == GIVEN[option]
        )

    def test_is_an_environment_variable_of_config_and_hooks(self, option):
        environment = as_environment({option: GIVEN[option]})
        assert list(environment) == [variable_of(option)]
        assert read_environment(LoggerOptions, environment) == {option: GIVEN[option]}
        assert getattr(StatsLoggerConfig.create(None, environment).trackio, option) == GIVEN[option]
        assert read_environment(HookOptions, environment) == {option: GIVEN[option]}

    def test_is_an_argument_of_a_hook_and_a_key_of_areals_config(self, option):
        assert getattr(HookOptions.of(**{option: GIVEN[option]}), option) == GIVEN[option]
        assert option in CONFIG_FIELDS or option in THEIRS

    def test_reaches_the_worker_by_the_manifest_or_by_what_holds_it(self, option):
        options = StepOptions.of(**{option: GIVEN[option]})
        manifest = RunManifest("p", "r", "i", options=options.as_plain())
        read = StepOptions.from_plain(RunManifest(**orjson.loads(manifest.as_json())).options)
        arrived = getattr(read, option) == GIVEN[option]
        assert arrived != (option in LEARNT_OTHERWISE)
        assert (option in for_worker(options)) == arrived

    def test_is_documented_once_with_the_others(self, option):
        documented = re.findall(r"^    (\w+): ", inspect.cleandoc(LoggerOptions.__doc__), re.M)
        assert documented.count(option) == 1


def test_what_the_run_declares_reaches_the_settings():
    options = StepOptions.of(
        project="p", **{name: GIVEN[name] for name in ("run_settings", "reward_range", "metric_ranges")}
    )
    settings = checked_options(options, {"rollout_traces": {"clip_high": 0.3}}).settings
    assert (settings.clip_low, settings.clip_high) == (0.2, 0.3)
    assert (settings.reward_range.max, settings.metric_ranges["kl"].invert) == (2.0, True)


def test_no_secret_is_written_or_printed():
    assert secret_names() == {"alert_webhook", "server_url"}
    options = StepOptions.of(**GIVEN)
    assert not secret_names() & set(options.as_plain())
    assert GIVEN["alert_webhook"] not in repr(options)


def test_a_field_is_enough_to_add_an_option():
    """What every surface knows is the fields themselves: nothing else names them."""
    assert {item.name for item in fields(TrackioConfig)} - {"mode"} == set(option_names())


def test_an_unknown_option_is_refused_by_name_and_none_leaves_a_default():
    with pytest.raises(TypeError, match=r"'selction' is no option of a logger\. Meant 'selection'"):
        rt.RolloutLogger("p", selction="all")
    with pytest.raises(TypeError, match="'selction'"):
        HookOptions.of(selction="all")
    assert LoggerOptions.of(selection=None, max_disk_gb=None) == LoggerOptions()


REPOSITORY = Path(__file__).resolve().parents[2]
MODULE = REPOSITORY / "rollout_traces" / "settings" / "logger_options.py"
BY_POSITION = ("project", "name")
HEAD = '''class LoggerKeywords(TypedDict, total=False):
    """Keyword arguments of a logger, as a type for editors and type checkers; None leaves a default."""

'''


TYPED = "import rollout_traces as rt\nstore = rt.open_store('p')\n{}\n"
WRONG = {
    "option": "rt.RolloutLogger('p', quiet_second=3.0)",
    "kind": "rt.RolloutLogger('p', quiet_seconds='soon')",
    "split": "rt.RolloutLogger('p').log_rollouts({}, step=1, spilt='rollout')",
    "query": "store.query(wher='reward > 1')",
    "search": "store.search('words', wher='reward > 1')",
    "rows": "store.query(rows='every')",
    "name": "store.transcrip('b0-1')",
    "none": "store.transcript('b0-1').turns",
    "opening": "rt.open_store('p', server='http://here')",
}
RIGHT = (
    "rt.RolloutLogger('p', quiet_seconds=3.0, selection='all', reward_range=None)",
    "rt.RolloutLogger('p').log_rollouts({}, step=1, split='rollout')",
    "split: str = store.search('words', where='reward > 1', limit=3).rows[0].split",
    "found = store.transcript('b0-1')\nassert found is not None\nrole: str = found.turns[0].role",
)


def keywords() -> str:
    """The generated class."""
    kept = [item for item in fields(LoggerOptions) if item.name not in BY_POSITION]
    types = {item.name: str(item.type).removesuffix(" | None") for item in kept}
    lines = [
        f"    {name}: {kind}" + ("" if kind == "Any" else " | None") + "\n" for name, kind in types.items()
    ]
    return HEAD + "".join(lines)


def checked(folder: Path, scripts: dict[str, str]) -> str:
    """What mypy says of a user's scripts; it has the package's types in its cache where `make types` ran before."""
    for name, script in scripts.items():
        (folder / f"{name}.py").write_text(script)
    command = [sys.executable, "-m", "mypy", *(str(folder / f"{name}.py") for name in scripts)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout


class TestLoggerKeywords:
    def test_the_class_is_what_the_options_say(self):
        assert f"\n\n{keywords()}\n\n" in MODULE.read_text()

    @pytest.fixture(scope="class")
    def said(self, tmp_path_factory):
        """What mypy says of all scripts below."""
        scripts = {f"wrong_{name}": TYPED.format(line) for name, line in WRONG.items()}
        right = {f"right_{number}": TYPED.format(line) for number, line in enumerate(RIGHT)}
        return checked(tmp_path_factory.mktemp("scripts"), scripts | right)

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("name", WRONG)
    def test_a_type_checker_catches(self, said, name):
        assert f"wrong_{name}.py:3" in said, said

    def test_a_type_checker_takes_what_is_right(self, said):
        assert "right_" not in said, said

    def test_the_docstring_names_every_option(self):
        named = rt.RolloutLogger.__doc__ or ""
        assert [name for name in option_names() if f"`{name}`" not in named and f"{name}:" not in named] == []


if __name__ == "__main__":
    written = re.sub(rf"{re.escape(HEAD)}(    .*\n)*", keywords(), MODULE.read_text())
    MODULE.write_text(written)


KEYS = {"loss/mean": 1.0, "loss/max": 2.0, "reward": 3.0}


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ("loss/*", ["loss/mean", "loss/max"]),
        (["loss/*", "!*/max"], ["loss/mean"]),
        (["!loss/*"], ["reward"]),
        (["reward", "loss/max"], ["loss/max", "reward"]),
        ("*", list(KEYS)),
        (FULL, list(KEYS)),
        ("Loss/*", []),
    ],
)
def test_a_key_is_kept_where_a_pattern_keeps_it_and_none_leaves_it_out(keys, kept):
    assert list(KeyFilter(keys).keep(KEYS)) == kept


def test_a_name_stands_for_its_patterns():
    named = {"few": ("loss/*", "!*/max")}
    assert list(KeyFilter("few", named).keep(KEYS)) == ["loss/mean"]
    assert list(KeyFilter(["few", "reward"], named).keep(KEYS)) == ["loss/mean", "reward"]
    denied = next(pattern[1:] for pattern in NAMED[SLIM] if pattern.startswith("!")).replace("*", "x")
    assert KeyFilter(FULL)(denied) and not KeyFilter(SLIM)(denied) and KeyFilter(SLIM)("reward")


@pytest.mark.parametrize("keys", ["", [], [""], [3], ["a", None]])
def test_what_is_no_pattern_is_refused_with_the_settings_name(keys):
    with pytest.raises(ConfigError, match=r"metric_keys: seen .* Expected .*, or patterns such as 'loss/\*'"):
        KeyFilter(keys, setting="metric_keys")


ENVIRONMENT = {
    "ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP": "8",
    "ROLLOUT_TRACES_PROJECT": "p",
    "ROLLOUT_TRACES_PRIVATE": "no",
    "ROLLOUT_TRACES_LEDGER": "false",
    "ROLLOUT_TRACES_MAX_DISK_GB": "2.5",
    "ROLLOUT_TRACES_CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}',
    "ROLLOUT_TRACES_SELECTION": "",
    "ROLLOUT_TRACES_KILLS": "3",
}


def test_a_field_of_any_type_reads_a_list_as_json():
    variable = {"ROLLOUT_TRACES_METRIC_KEYS": '["reward/mean", "!entropy/*"]'}
    assert StatsLoggerConfig.create(None, variable).trackio.metric_keys == ["reward/mean", "!entropy/*"]
    assert (
        StatsLoggerConfig.create(None, {"ROLLOUT_TRACES_METRIC_KEYS": "full"}).trackio.metric_keys == "full"
    )


def test_hooks_and_the_config_section_read_the_same():
    hook = read_environment(HookOptions, ENVIRONMENT)
    config = vars(StatsLoggerConfig.create(None, ENVIRONMENT).trackio)
    assert hook == {
        "max_rollout_traces_per_step": 8,
        "project": "p",
        "private": False,
        "ledger": False,
        "max_disk_gb": 2.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert {name: config[name] for name in hook} == hook
    assert config["selection"] == "portfolio"


def test_a_list_or_a_dict_is_json():
    read = StatsLoggerConfig.create(None, {"ROLLOUT_TRACES_REWARD_RANGE": "[0, 1]"}).trackio
    assert read.reward_range == [0, 1]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_rollout_traces_per_step", "many", "int"),
        ("private", "perhaps", "bool"),
        ("max_disk_gb", "much", "float"),
        ("chat_template_kwargs", "{'a': 1}", "dict as JSON"),
        ("chat_template_kwargs", "[1]", "dict"),
    ],
)
@pytest.mark.parametrize("settings", [HookOptions, TrackioConfig])
def test_what_cannot_be_understood_is_named_with_its_variable(settings, name, value, expected):
    with pytest.raises(ConfigError, match=rf"{variable_of(name)}: seen .*Expected (a )?{expected}"):
        read_environment(settings, {variable_of(name): value})


def test_what_is_written_for_a_child_process_is_read_again():
    given = {
        "max_rollout_traces_per_step": 4,
        "name": "run 1",
        "private": True,
        "chat_template_kwargs": {"a": [1, None]},
    }
    assert read_environment(HookOptions, as_environment({**given, "selection": None})) == given
