"""What a caller gives a logger: understood, or refused with its name."""

from __future__ import annotations

import shlex
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.cluster.rendezvous import Ranks
from rollout_traces.errors import BatchError, ConfigError, Warnings
from rollout_traces.logger.arguments import (
    awaited_keys,
    batches_of_call,
    check_cap,
    check_choice,
    check_split,
    checked_options,
    inspector_of,
    naming,
    plain_step,
    where_to_open,
)
from rollout_traces.sink.webhook import ENVIRONMENT
from rollout_traces.steps.run_state import StepOptions
from rollout_traces.store import open_store
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


def options(**given: object) -> StepOptions:
    return StepOptions.of(project="p", name="run", **given)


class TestSteps:
    @pytest.mark.parametrize("step", [0, -1, 7.0, np.int32(7), np.float64(3.0), 2**63 - 1, -(2**63)])
    def test_whole_numbers_are_steps(self, step) -> None:
        assert plain_step(step) == int(step) and type(plain_step(step)) is int

    @pytest.mark.parametrize(
        "step", [None, "x", "12", 1.5, True, 2**63, -(2**63) - 1, float("nan"), float("inf"), [1]]
    )
    def test_others_are_refused(self, step) -> None:
        with pytest.raises(BatchError, match=r"step: seen .*Expected the trainer's global step"):
            plain_step(step)

    def test_a_split_is_one_of_two(self) -> None:
        check_split("rollout"), check_split("eval-rollout")
        with pytest.raises(BatchError, match=r"split: seen 'train'\. Expected one of rollout, eval-rollout"):
            check_split("train")


class TestOptions:
    @pytest.mark.parametrize("cap", [True, 1.0, "3", None])
    def test_a_number_of_traces_is_an_int(self, cap) -> None:
        check_cap(0), check_cap(-1)
        with pytest.raises(ConfigError, match="max_rollout_traces_per_step: seen"):
            check_cap(cap)

    def test_one_of_some_choices_is_named_with_them(self) -> None:
        check_choice("worker", "thread", ("process", "thread"))
        with pytest.raises(ConfigError, match=r"worker: seen 'gpu'\. Expected one of process, thread"):
            check_choice("worker", "gpu", ("process", "thread"))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"resume": "perhaps"}, "resume: seen 'perhaps'"),
            ({"worker": "gpu"}, "worker: seen 'gpu'"),
            ({"selection": "no such"}, "no such"),
            ({"flag_parameters": {"stale.limits": 3}}, "stale.limits"),
            ({"metric_keys": ("no such",)}, "no such"),
            ({"alert_webhook": "no address"}, "alert_webhook|webhook"),
        ],
    )
    def test_what_cannot_be_understood_is_refused_by_its_name(self, given, said, monkeypatch) -> None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
        with pytest.raises(ConfigError, match=said):
            checked_options(options(**given), None)

    def test_what_the_run_declares_is_read_from_its_config_and_its_options(
        self, monkeypatch, tmp_path
    ) -> None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
        monkeypatch.chdir(tmp_path)
        given = options(
            reward_range=(0.0, 1.0), all_rows_folder="rows", run_settings={"success_threshold": 0.5}
        )
        found = checked_options(given, {"rollout_traces": {"clip_low": 0.2}})
        assert (found.settings.reward_range.min, found.settings.reward_range.max) == (0.0, 1.0)
        assert (found.settings.success_threshold, found.settings.clip_low) == (0.5, 0.2)
        assert found.all_rows_folder == str(tmp_path / "rows") and found.alert_webhook is None

    def test_a_webhook_may_come_from_the_environment(self, monkeypatch) -> None:
        monkeypatch.setenv(ENVIRONMENT, "https://example.org/hook")
        assert checked_options(options(), None).alert_webhook == "https://example.org/hook"
        own = options(alert_webhook="https://example.org/own")
        assert checked_options(own, None).alert_webhook == "https://example.org/own"

    def test_an_error_of_something_else_is_named_and_one_of_our_own_stays(self) -> None:
        with pytest.raises(ConfigError, match="tokenizer: ValueError: no vocabulary"), naming("tokenizer"):
            raise ValueError("no vocabulary")
        with pytest.raises(BatchError, match=r"^as it is$"), naming("tokenizer"):
            raise BatchError("as it is")


class TestAwaitedKeys:
    def test_a_name_that_cannot_be_joined_is_left_out_and_counted(self) -> None:
        counters: Counter[str] = Counter()
        assert awaited_keys(["losses", "lossses"], Warnings(counters)) == ["losses"]
        assert counters == {"keys_misspelt": 1}

    @pytest.mark.parametrize(("given", "found"), [("losses", ["losses"]), (None, []), ((), [])])
    def test_one_or_none_may_be_given(self, given, found) -> None:
        counters: Counter[str] = Counter()
        assert awaited_keys(given, Warnings(counters)) == found and not counters


class TestBatches:
    def group(self, seed: int = 0) -> dict:
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2, seed=seed))
        arrays.pop("group_ids")
        return arrays

    def test_each_dict_of_a_list_is_a_group(self) -> None:
        counters: Counter[str] = Counter()
        parts = batches_of_call([self.group(1), None, self.group(2)], "call", Warnings(counters))
        groups = [set(np.asarray(part.group_ids).tolist()) for part in parts]
        assert len(groups) == 2 and all(len(group) == 1 for group in groups) and groups[0] != groups[1]
        assert counters == {"trajectories_missing": 1}

    def test_one_that_is_odd_does_not_take_its_siblings(self) -> None:
        counters: Counter[str] = Counter()
        assert len(batches_of_call([{"input_ids": "x"}, self.group()], "call", Warnings(counters))) == 1
        assert counters["batches_refused"] == 1

    def test_keys_that_nobody_knows_are_counted_and_said_once(self, caplog) -> None:
        counters: Counter[str] = Counter()
        warnings = Warnings(counters)
        for _ in range(2):
            batches_of_call({**self.group(), "rewardz": [1.0, 0.0], "mine": 3}, "call", warnings)
            batches_of_call([{**self.group(), "rewardz": [1.0, 0.0], "mine": 3}], "call", warnings)
        assert counters["keys_left_out"] == 8
        assert caplog.text.count("rewardz, mine") == 1


SAID = "* Rollouts of this run: "


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed of where to open a run."""
    return [line.removeprefix(SAID) for line in capsys.readouterr().out.splitlines() if SAID in line]


def run_of(**written: str | None) -> SimpleNamespace:
    """What a Trackio run says of where it writes to."""
    return SimpleNamespace(project="a b", name="run 1", _space_id=None, _server_base_url=None, **written)


class TestWhatIsPrinted:
    def test_is_one_line_a_run_however_many_loggers_it_has(self, trackio_dir, capsys):
        first = rt.RolloutLogger("p", "run", worker="thread")
        second = rt.RolloutLogger("p", "run", worker="thread", run=first.run)
        assert said(capsys) == ["rollout-traces show --project p --run run"]
        assert second.finish(60) and first.finish(60)
        rt.RolloutLogger("p", "another", worker="thread").finish(60)
        assert said(capsys) == ["rollout-traces show --project p --run another"]

    def test_is_nothing_where_the_logger_is_quiet(self, trackio_dir, capsys):
        rt.RolloutLogger("p", "run", worker="thread", quiet=True).finish(60)
        assert said(capsys) == []

    @pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
    def test_is_said_by_rank_0_alone_where_each_rank_has_a_run(
        self, trackio_dir, capsys, monkeypatch, rank, lines
    ):
        ranks = Ranks(rank, 2, torch.distributed.HashStore(), "node")
        monkeypatch.setattr("rollout_traces.logger.rollout_logger.current_ranks", lambda: ranks)
        rt.RolloutLogger("p", "run", worker="thread", per_rank=True).finish(60)
        assert len(said(capsys)) == lines


def stored_metadata(project: str) -> list[dict]:
    """The metadata of a run's kept rollouts."""
    store = open_store(project=project)
    return [dict(store.record(row.id).metadata) for row in store.query("r", "rollout").rows]


class TestAddresses:
    def test_the_runs_config_and_each_trace_lead_to_the_inspector_that_a_user_names(self, trackio_dir):
        logger = rt.RolloutLogger(
            "p p",
            "r",
            inspector_url="http://127.0.0.1:7861/lab/",
            max_rollout_traces_per_step=8,
            worker="thread",
        )
        talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
        logger.log_rollouts(rt.RolloutBatch.from_messages([talk] * 2, rewards=[0.0, 1.0]), step=3)
        assert logger.finish(60)
        store = open_store(project="p p")
        config = store.config("r")["rollout_traces"]
        assert config["inspector"] == "http://127.0.0.1:7861/lab/?project=p+p&run=r"
        found = sorted(metadata["inspector"] for metadata in stored_metadata("p p"))
        assert found[0] == (
            "http://127.0.0.1:7861/lab/?project=p+p&run=r&tab=rollouts&split=rollout&step=3&group=0&sample=0"
        )

    def test_no_address_is_made_up(self, trackio_dir):
        logger = rt.RolloutLogger("p", "r", max_rollout_traces_per_step=8, worker="thread")
        talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
        logger.log_rollouts(rt.RolloutBatch.from_messages([talk], rewards=[0.0]), step=3)
        assert logger.finish(60)
        store = open_store(project="p")
        assert "inspector" not in store.config("r").get("rollout_traces", {})
        [metadata] = stored_metadata("p")
        assert "inspector" not in metadata

    def test_an_inspector_that_takes_what_runs_log_is_its_own_address(self):
        assert inspector_of(None, "http://host:1/x/trackio?write_token=t") == "http://host:1/x"
        assert inspector_of(None, "http://host:1/") is None and inspector_of(None, None) is None

    @pytest.mark.parametrize(
        "given",
        [
            "host:7861",
            "ftp://host/",
            "http://host/?token=secret",
            "http://me:secret@host/",
            "javascript:alert(1)",
        ],
    )
    def test_what_is_none_or_holds_a_secret_is_refused_without_repeating_it(self, given):
        with pytest.raises(ConfigError, match="inspector_url") as refused:
            inspector_of(given, None)
        assert "secret" not in str(refused.value)


class TestTheCommand:
    def test_is_one_that_show_understands(self, trackio_dir):
        command = shlex.split(where_to_open(run_of()))
        assert command == ["rollout-traces", "show", "--project", "a b", "--run", "run 1"]
        done = CliRunner().invoke(build_app(["show"]), [*command[1:], "--no-browser"])
        assert "a b" in str(done.exception)

    def test_names_the_space_or_the_server(self):
        space = run_of()
        space._space_id = "user/space"
        assert where_to_open(space).startswith("rollout-traces show --space user/space --project")
        server = run_of()
        server._server_base_url = "http://host:7860"
        assert where_to_open(server).startswith("rollout-traces show --server-url http://host:7860 --project")

    def test_is_the_address_of_the_inspector_that_takes_what_the_run_logs(self):
        run = run_of()
        run._server_base_url = "https://host/prefix/trackio/"
        assert where_to_open(run) == "https://host/prefix/?project=a+b&tab=run&run=run+1"
