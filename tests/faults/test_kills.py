"""A few kills at random moments; `make faults` does two hundred."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kills import CAP, MANY, VICTIMS, Outcome, judge, never_hit, running_workers
from tests.faults.table import FaultRow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(7200)
class TestKills:
    def test_lose_nothing_that_was_handed_over_and_double_nothing(self, row):
        rounds = os.environ.get("ROLLOUT_TRACES_KILLS", "3")
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.kills", "--rounds", rounds],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=7000,
        )
        for line in done.stdout.splitlines()[-len(VICTIMS) :]:
            victim, _, came = line.partition(": ")
            said, _, numbers = came.partition("; ")
            handed_over, lost, doubled = map(int, numbers.split())
            tried, _, note = said.partition(", ")
            row(
                FaultRow(
                    f"kill -9 of {victim}", tried, handed_over, handed_over - lost, lost, doubled, None, note
                )
            )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


class TestTheJudge:
    """The judge of the kills sees what it is there to see."""

    @pytest.fixture
    def run(self, trackio_dir):
        import rollout_traces as rt
        from tests.faults.kills import PLAN
        from tests.generator import batch_arrays, tiny_tokenizer

        tokenizer = tiny_tokenizer()
        arrays = batch_arrays(tokenizer, PLAN)
        logger = rt.RolloutLogger("p", "run", tokenizer, max_rollout_traces_per_step=CAP, worker="thread")
        said = trackio_dir / "said"
        lines = []
        for step in range(2):
            lines.append(f"rows {logger.log_rollouts(arrays, step=step).batch_id} 4 {step}")
            logger.log_scalars({"train/loss": 0.5}, step=step)
            lines.append(f"scalars {step}")
        logger.finish()
        said.write_text("\n".join(lines))
        return trackio_dir, said

    def test_an_unhurt_run_is_good(self, run):
        assert judge(*run, "nobody", 0.0).good

    def test_a_lost_trace_a_lost_digest_and_a_lost_scalar_are_seen(self, run):
        import sqlite3

        folder, said = run
        for sql in (
            "delete from traces where key like '%steps' and step = 1",
            "delete from traces where key like '%trajectories' and step = 0 and trace_index = 0",
            "delete from metrics where step = 0",
        ):
            before = judge(folder, said, "nobody", 0.0).lost
            with sqlite3.connect(folder / "p.db") as db:
                db.execute(sql)
            assert judge(folder, said, "nobody", 0.0).lost > before, sql

    def test_a_doubled_trace_is_seen(self, run):
        import sqlite3

        folder, said = run
        columns = (
            "run_id, timestamp, run_name, step, key, trace_index, messages, metadata, search_text, spans"
        )
        with sqlite3.connect(folder / "p.db") as db:
            db.execute(
                f"insert into traces (id, {columns}) select id || 'x', {columns} from traces "
                "where key like '%trajectories' limit 1"
            )
        assert judge(folder, said, "nobody", 0.0).doubled == 1

    @pytest.mark.parametrize("victim", VICTIMS)
    def test_rounds_that_met_no_running_process_are_seen(self, victim):
        missed = [Outcome(victim, 0, 0, 4, 0, 0, 0, 1.0)] * MANY
        assert never_hit(missed) == {victim}
        assert never_hit([*missed, Outcome(victim, 1, 1, 4, 0, 0, 0, 1.0)]) == set()


class TestTheVictim:
    def test_worker_is_the_one_the_trainer_named_last_while_it_runs(self, tmp_path):
        said = tmp_path / "said"
        code = "import sys; print('rollout_traces', flush=True); sys.stdin.read()"
        running = subprocess.Popen(
            [sys.executable, "-c", code, "rollout_traces.worker.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert running.stdout is not None
        running.stdout.readline()
        said.write_text(f"rows aa 4 0\nworker None\nworker {running.pid}\n")
        assert running_workers(said) == [running.pid]
        running.communicate()
        assert running_workers(said) == []
