from __future__ import annotations

import base64
import contextlib
import sqlite3
import zlib
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import pack
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.store import Store, open_store
from rollout_traces.store.columns import read_ledger
from rollout_traces.store.reading import group_number, read_trace
from rollout_traces.store.rows import StoredTrace
from rollout_traces.trace.conversion import TRACK_KEY, TraceRecord, read_transcript
from tests.inspector.told import told
from tests.sources.test_trackio_traces import TRACES
from tests.store.projects import (
    PROJECT,
    RUN,
    conversation,
    database,
    make_ledger,
    step_records,
    store_values,
    write_step,
    write_traces,
)

CHAT = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "general answer"}]

RESERVED = {"step", "split", "run_id"}
"""Fields of other tools that have the names of columns which say where a rollout is."""
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=5),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class TestOtherTools:
    def test_trl_traces_have_our_names_for_what_we_name(self, trackio_dir: Path) -> None:
        values = conversation(
            "rollouts",
            CHAT,
            reward=0.5,
            advantage=-1.0,
            group_id=3,
            model_version=7,
            prompt_tokens=11,
            completion_tokens=22,
            **{"rewards/accuracy": 0.25},
        )
        store_values(values, step=4)
        store = open_store(PROJECT)
        row = store.query(where="component/accuracy = 0.25 and n_sampled = 22").rows[0]
        assert (row.split, row.step, row["group"], row["version_max"]) == ("rollout", 4, 3, 7)
        assert (row["group_id"], row["rewards/accuracy"], row["n_turns"]) == (3, 0.25, 1)
        assert store.transcript(row.id or "") is None
        groups = store.groups(RUN, "rollout", 4)
        assert groups.n_rollouts is None and groups.groups[0].from_ledger is False

    def test_flags_that_text_tells_are_found(self, trackio_dir: Path) -> None:
        chat = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": "<think>and so on"},
            {"role": "tool", "content": "Error: no such file"},
        ]
        store_values(conversation("rollouts", chat, reward=0.5, group_id=3, model_version=7), step=4)
        (row,) = open_store(PROJECT).query(where="flags has 'tool_error'").rows
        assert set(row["flags"]) == {"tool_error", "thinking_unclosed"}

    @pytest.mark.parametrize("trainer", TRACES)
    def test_a_trainers_traces_have_its_name_our_names_and_their_own(
        self, trackio_dir: Path, trainer: str
    ) -> None:
        key, metadata, expected = TRACES[trainer]
        store_values(conversation(key, CHAT, **metadata), step=1)
        (row,) = open_store(PROJECT).query().rows
        seen = {"split": row.split, "step": row.step} | {
            name: row[name] for name in expected if name not in ("split", "step")
        }
        group = expected.get("group")
        named = {} if group is None else {"group": group_number(group)}
        assert {name: seen[name] for name in expected} == expected | named
        assert (row["written_by"], row["unreadable"], row["kind"]) == (trainer, None, "other")
        own = {n: v for n, v in metadata.items() if not isinstance(v, list) and n not in RESERVED}
        assert {name: row[name] for name in own if name not in expected} == {
            name: value for name, value in own.items() if name not in expected
        }

    def test_groups_that_a_tool_names_by_text_are_groups(self, trackio_dir: Path) -> None:
        key, metadata, _ = TRACES["SkyRL"]
        for instance in ("i7", "i7", "i8"):
            store_values(conversation(key, CHAT, **metadata | {"instance_id": instance}), step=6)
        groups = open_store(PROJECT).groups(RUN, "rollout", 6)
        assert sorted(len(group.traces) for group in groups.groups) == [1, 2]
        assert groups.n_rollouts is None

    def test_fields_that_are_not_the_trainers_are_counted_and_kept(
        self, trackio_dir: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        odd = {"op": "Loop.run", "output": {"prompt_ids": 5, "response_ids": [1]}, "sample_index": 8}
        store_values(conversation("rollout_trace/Loop.run", CHAT, **odd), step=1)
        store_values(conversation("chat", CHAT, reward=0.5), step=1)
        store = open_store(PROJECT)
        (row,) = store.query(where="unreadable = 1").rows
        assert (row["written_by"], row["sample_index"], row["prompt"]) == ("verl", 8, "hello there")
        assert store.count() == 2 and store.count(where="written_by = 'verl'") == 1
        assert "1 traces of 2 cannot be read whole" in caplog.text

    @settings(max_examples=200, deadline=None)
    @given(data=st.data())
    def test_any_value_in_a_trainers_field_is_read_or_counted(self, data: st.DataObject) -> None:
        trainer = data.draw(st.sampled_from(sorted(TRACES)))
        key, metadata, _ = TRACES[trainer]
        odd = data.draw(st.dictionaries(st.sampled_from(sorted(metadata)), JSON))
        messages = data.draw(st.one_of(st.just(CHAT), st.lists(JSON, max_size=3)))
        stored = StoredTrace(
            rowid=1, trace_id="t", run_id=RUN, run_name=RUN, step=1, key=key, trace_index=0,
            timestamp="", messages=orjson.dumps(messages), metadata=orjson.dumps(metadata | odd), spans=None,
        )  # fmt: skip
        reading = read_trace(stored)
        assert isinstance(reading.split, str) and isinstance(reading.step, int)
        assert all(isinstance(value, (int, float, str, tuple)) for value in reading.fields.values())
        assert reading.fields["written_by"] == trainer

    def test_areal_trajectories_are_of_the_rollout_split(self, trackio_dir: Path) -> None:
        store_values(conversation("rollout/trajectories", CHAT, reward=1.0, status="done"), step=2)
        row = open_store(PROJECT).query(split="rollout").rows[0]
        assert (row["kind"], row["reward"], row["prompt"]) == ("other", 1.0, "hello there")

    def test_a_single_plain_trace_is_listed_searched_and_read(self, trackio_dir: Path) -> None:
        import trackio

        trace = trackio.Trace([dict(m) for m in CHAT], {"latency": {"total": 1.5, "deep": {"a": {"b": 1}}}})
        store_values({"chat": trace._to_dict(PROJECT, RUN)}, step=0)
        store = open_store(PROJECT)
        (row,) = store.query(text="general").rows
        assert row["latency/total"] == 1.5 and row["trace_index"] is None
        assert store.record(row.id or "").messages[1]["content"] == "general answer"

    def test_as_a_user_logs_them(self, trackio_dir: Path) -> None:
        import trackio

        run = trackio.init(project=PROJECT, name="by-hand", embed=False, auto_log_gpu=False)
        run.log(
            {"chat": [trackio.Trace([dict(m) for m in CHAT], {"reward": 0.5}) for _ in range(3)], "loss": 1.0}
        )
        trackio.finish()
        store = open_store(PROJECT)
        assert [row["trace_index"] for row in store.query(run="by-hand", where="reward = 0.5").rows] == [
            0,
            1,
            2,
        ]

    @pytest.mark.parametrize(
        "messages",
        [
            [],
            [{}],
            [{"role": None, "content": None}],
            [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "image"}, 5]}],
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}, "x", {}],
                }
            ],
            [{"role": "user", "content": {"text": "odd"}}, {"content": 3}],
        ],
    )
    def test_odd_messages_are_listed(self, trackio_dir: Path, messages: list) -> None:
        store_values(conversation("chat", messages, reward=1), step=0)
        store = open_store(PROJECT)
        (row,) = store.query().rows
        assert row["n_messages"] == len(messages)
        assert list(store.record(row.id or "").messages) == messages

    def test_values_that_are_no_scalars_are_left_to_the_trace(self, trackio_dir: Path) -> None:
        store_values(
            conversation(
                "chat",
                CHAT,
                big=2**70 * 1.0,
                inf=float("inf"),
                nan=float("nan"),
                numbers=[1, 2],
                yes=True,
                empty="",
            ),
            step=0,
        )
        row = open_store(PROJECT).query().rows[0]
        assert row["inf"] == float("inf") and row["yes"] == 1 and row["big"] == 2.0**70
        assert row["nan"] is None and row["numbers"] is None

    def test_metadata_named_like_our_own_columns_does_no_harm(self, trackio_dir: Path) -> None:
        store_values(
            conversation(
                "chat", CHAT, run="fake", id="fake", step="late", split=3, doc=1, m0=5, kind="digest"
            ),
            step=6,
        )
        store = open_store(PROJECT)
        (row,) = store.query().rows
        assert (row.run, row.step, row.split) == (RUN, 6, "chat") and row.id != "fake"
        assert store.count(where="run = 'run-001'") == 1


class TestOddValues:
    """SQLite keeps any type in any column, and other tools put anything into metadata."""

    def test_a_text_in_a_step_column_spoils_nothing(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=3), (0, 1))
        store_values({"train/loss": 0.5}, step=3)
        with sqlite3.connect(database(trackio_dir)) as connection:
            connection.execute("UPDATE traces SET step = 'three' WHERE id LIKE '%trajectories:0'")
            connection.execute(
                "INSERT INTO metrics (id, run_id, timestamp, run_name, step, metrics) SELECT NULL, run_id, timestamp, run_name, 'four', metrics FROM metrics"
            )
            connection.execute(
                "INSERT INTO metrics (id, run_id, timestamp, run_name, step, metrics) SELECT NULL, run_id, timestamp, run_name, 5, '{no' FROM metrics LIMIT 1"
            )
            connection.execute(
                "INSERT INTO metrics (id, run_id, timestamp, run_name, step, metrics) SELECT NULL, run_id, timestamp, run_name, 6, '[1]' FROM metrics LIMIT 1"
            )
        store = open_store(PROJECT)
        assert store.count() == 2
        assert isinstance(store.runs()[0].last_step, int)
        assert store.metrics(RUN)["train/loss"] == ([3], [0.5])

    def test_a_reward_that_is_a_text_is_no_number_and_is_kept(self, trackio_dir: Path) -> None:
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        for reward in ("0.25", "good", "nan"):
            store_values(conversation("chat", said, reward=reward, group_id=1), step=1)
        store = open_store(PROJECT)
        found = sorted(
            (row["reward"] is None, row["reward"] or 0, row["reward/text"] or "")
            for row in store.query().rows
        )
        assert found == [(False, 0.25, ""), (True, 0, ""), (True, 0, "good")]
        assert store.count(where="reward > 0.2") == 1

    def test_two_of_them_can_be_compared(self, trackio_dir: Path) -> None:
        from rollout_traces.inspector.pages.compare import compare, prompt_history
        from rollout_traces.inspector.workspace import Workspace

        said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        for reward in ("good", "bad", 0.5):
            store_values(conversation("chat", said, reward=reward, group_id=1, prompt_key="q"), step=1)
        workspace = Workspace(folder=trackio_dir)
        asked = {"project": PROJECT, "run": RUN, "split": "chat", "step": 1, "group": 1, "prompt_key": "q"}
        compared = told(compare, workspace, asked)
        assert len(compared["sides"]) == 2
        told(prompt_history, workspace, asked)
        workspace.close()

    def test_metadata_of_a_newer_version_is_said(self, trackio_dir: Path) -> None:
        from rollout_traces.inspector.payload import rollout_payload

        (record,) = step_records(make_ledger([[1.0]], step=0), (0,))
        write_traces(
            {
                "rollout/trajectories": [
                    TraceRecord(record.messages, {**record.metadata, "schema": 99}, record.spans)
                ]
            },
            step=0,
        )
        store = open_store(PROJECT)
        shown = store.record(store.find("b0-0"))
        assert "newer rollout-traces (schema 99" in rollout_payload("x", shown)["warnings"][0]
        assert "newer" not in str(rollout_payload("x", record)["warnings"])


class TestDamage:
    def _damage(self, folder: Path, sql: str) -> None:
        with sqlite3.connect(database(folder)) as connection:
            connection.execute(sql)

    def test_a_damaged_token_track_is_contained_and_said(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0), (0, 1))
        self._damage(
            trackio_dir,
            'UPDATE traces SET spans = replace(CAST(spans AS TEXT), \'"token_track":"\', \'"token_track":"AAAA\')'
            " WHERE id LIKE '%trajectories:0'",
        )
        store = open_store(PROJECT)
        first, second = store.query(order_by="sample").rows
        with pytest.raises(StoreError, match="damaged"):
            store.transcript(first.id or "")
        assert store.transcript(second.id or "") is not None
        assert store.record(first.id or "").messages[0]["content"] == "question 0"

    @pytest.mark.parametrize("column", ["messages", "metadata"])
    def test_damaged_json_is_listed_as_unreadable(self, trackio_dir: Path, column: str) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0), (0, 1))
        self._damage(
            trackio_dir, f"UPDATE traces SET {column} = '{{not json' WHERE id LIKE '%trajectories:0'"
        )
        store = open_store(PROJECT)
        (row,) = store.query(where="unreadable = 1").rows
        with pytest.raises(StoreError, match="stored JSON: damaged"):
            store.record(row.id or "")
        assert store.count() == 2

    @pytest.mark.parametrize("ledger", ["AAAA", "", "not base64 é", "eJwDAAAAAAE="])
    def test_a_damaged_ledger_is_contained(self, trackio_dir: Path, ledger: str) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        write_step(make_ledger([[0.0]], step=1), (0,))
        self._damage(
            trackio_dir,
            f'UPDATE traces SET spans = \'[{{"id":"digest","ledger":"{ledger}"}}]\' WHERE key LIKE \'%/steps\' AND step = 0',
        )
        store = open_store(PROJECT)
        assert store.count() == 2
        assert [(s.step, s.n_rollouts) for s in store.steps(RUN, "rollout")] == [(0, None), (1, 1)]
        assert store.ledger().n_rows == 1


class TestMadeUpPacks:
    """Bytes that decompress well and are not what they claim to be."""

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_change_of_a_token_track_is_read_or_said(self, store: Store, data: st.DataObject) -> None:
        record = store.record(store.find("b0-0"))
        raw = bytearray(zlib.decompress(base64.b64decode(record.spans[0][TRACK_KEY])))
        packed = base64.b64encode(zlib.compress(changed(raw, data))).decode()
        changed_record = TraceRecord(record.messages, record.metadata, [{TRACK_KEY: packed}])
        with contextlib.suppress(StoreError), damage_said("token track"):
            read_transcript(changed_record)

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_any_change_of_a_ledger_is_read_or_said(self, data: st.DataObject) -> None:
        raw = bytearray(zlib.decompress(pack(make_ledger([[0.0, 1.0], [0.5]], step=3))))
        with contextlib.suppress(StoreError):
            read_ledger(zlib.compress(changed(raw, data)))


def changed(raw: bytearray, data: st.DataObject) -> bytes:
    """Bytes with some cut off, overwritten, or other digits in them."""
    kind = data.draw(st.sampled_from(["cut", "overwrite", "digits"]))
    if kind == "cut":
        return bytes(raw[: data.draw(st.integers(0, len(raw)))])
    digits = [at for at in range(4, len(raw)) if chr(raw[at]).isdigit()]
    for _ in range(data.draw(st.integers(1, 4))):
        if kind == "overwrite":
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        else:
            raw[data.draw(st.sampled_from(digits))] = ord(data.draw(st.sampled_from("0123456789")))
    return bytes(raw)
