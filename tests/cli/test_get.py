from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from rollout_traces import RolloutBatch, RolloutLogger
from rollout_traces.cli import build_app
from rollout_traces.cli.printing import RenderedTurn, folded, turns_of
from rollout_traces.model.text import harmless, one_line
from rollout_traces.store import open_store
from tests.cli.conftest import Command
from tests.store.projects import PROJECT, conversation, make_ledger, store_values, write_step


class TestGet:
    def test_a_conversation_with_its_header_and_flags(self, command: Command) -> None:
        output = command("get", "b0-1").output
        assert "⚑ truncated: truncated was seen." in output
        assert output.startswith("b0-1\n") and "uid" not in output
        assert "user ·" in output and "assistant ·" in output and "version 7" in output
        assert "I am sorry, I cannot help with that." in output
        assert "<|assistant|>" not in output

    def test_one_that_was_logged_as_messages_alone_has_its_text(self, trackio_dir: Path) -> None:
        """Seen once: two headings with no tokens, and nothing below them."""
        logger = RolloutLogger(project="texts", name="run", worker="thread", max_rollout_traces_per_step=1)
        said = [
            {"role": "user", "content": "What is 6 times 7?"},
            {"role": "assistant", "content": "It is 42."},
        ]
        logger.log_rollouts(RolloutBatch.from_messages([said], rewards=[1.0]), step=0)
        logger.finish()
        [row] = open_store("texts").query().rows
        output = CliRunner().invoke(build_app(["get"]), ["get", row.id, "-p", "texts"]).output
        assert "What is 6 times 7?" in output and "It is 42." in output and "0 tokens" not in output

    def test_raw_shows_the_markers(self, command: Command) -> None:
        assert "<|assistant|>" in command("get", "b0-1", "--raw").output

    def test_json(self, command: Command) -> None:
        found = json.loads(command("get", "b0-1", "--json").stdout)
        assert found["metadata"]["uid"] == "b0-1" and len(found["messages"]) == 2
        assert found["details"]["flags"][0]["name"] == "truncated"

    def test_tokens_in_the_loss_are_bright_and_all_others_dim(self, store) -> None:
        transcript = store.transcript(store.find("b0-1"))
        user, assistant = (turn.body for turn in turns_of(transcript, raw=True))
        assert {str(span.style) for span in user.spans} == {"dim"}
        bright = [span for span in assistant.spans if str(span.style) == "green"]
        assert "".join(assistant.plain[span.start : span.end] for span in bright) == (
            "I am sorry, I cannot help with that.<|end|>\n"
        )


class TestFolding:
    def test_of_a_long_system_prompt_the_beginning_is_shown_and_the_rest_counted(self) -> None:
        """Seen once: get printed a system prompt of 2,387 tokens first."""
        system = RenderedTurn("system", "system", Text("Tools.\n" * 1000, style="dim"))
        question = RenderedTurn("user", "user", Text("why? " * 1000))
        shown, asked = folded([system, question])
        assert shown.body.plain == ("Tools.\n" * 86)[:600] + "\n… 6,400 more characters; --raw shows all"
        assert asked is question

    def test_a_short_system_prompt_is_shown_whole(self) -> None:
        system = RenderedTurn("system", "system", Text("You are helpful. " * 60))
        assert list(folded([system])) == [system]

    def test_raw_shows_all_of_it(self, trackio_dir: Path) -> None:
        tools = "a tool of many words " * 200
        write_step(make_ledger([[0.0]], step=0), (0,), {0: (("system", tools), ("assistant", "yes"))})
        shown, whole = (
            CliRunner().invoke(build_app(["get"]), ["get", "b0-0", *raw]).output for raw in ([], ["--raw"])
        )
        assert "more characters; --raw shows all" in shown and "yes" in shown
        assert "more characters" not in whole
        assert whole.count("many") == 200 > shown.count("many")


HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \u200b [bold]not markup[/bold] \x9b31m \r\x00 \ud800"


class TestHostileText:
    def test_what_would_steer_a_terminal_is_spelled_out(self) -> None:
        shown = harmless(HOSTILE)
        assert shown.startswith("\\x1b[2J\\x1b]0;owned\\x07 \\u202egnp.exe \\u200b [bold]")
        assert not set("\x1b\x07\u202e\u200b\x9b\r\x00\ud800") & set(shown)
        assert harmless("tab\tand\nnewline ✓ é 答") == "tab\tand\nnewline ✓ é 答"

    def test_one_line_is_one_short_line(self) -> None:
        assert one_line("a\n b\x1b" + "c" * 100, 10) == "a\\n b\\x1bcccc…"

    def test_nothing_of_it_reaches_the_terminal(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hostile = HOSTILE.replace("\ud800", "")
        write_step(make_ledger([[0.0]], step=0), (0,), {0: (("user", hostile), ("assistant", hostile))})
        store_values(
            conversation("chat", [{"role": hostile, "content": hostile}], **{hostile: hostile}), step=0
        )
        store = open_store(PROJECT)
        for row in store.query().rows:
            out = io.StringIO()
            console = functools.partial(Console, file=out, width=100)
            monkeypatch.setattr("rich.console.Console", console)
            CliRunner().invoke(build_app(["get"]), ["get", row.id or "", "--raw"], catch_exceptions=False)
            assert not set("\x1b\x07\u202e\u200b\x9b\r\x00") & set(out.getvalue())
            assert "[bold]not markup[/bold]" in out.getvalue()


class TestDamage:
    def test_damaged_tokens_are_said_and_the_messages_shown(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import sqlite3

        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        write_step(make_ledger([[0.0]], step=0), (0,))
        with sqlite3.connect(trackio_dir / f"{PROJECT}.db") as connection:
            connection.execute(
                'UPDATE traces SET spans = replace(CAST(spans AS TEXT), \'"token_track":"\', \'"token_track":"AAAA\')'
            )
        output = CliRunner().invoke(build_app(["get"]), ["get", "b0-0"]).output
        assert "The tokens cannot be read" in output and "answer 0" in output
