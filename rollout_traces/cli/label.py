"""`rollout-traces label`: labels and notes on rollouts."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_rows, print_table, sentence
from rollout_traces.errors import ConfigError, extra
from rollout_traces.model.text import WHOLE_SECONDS

if TYPE_CHECKING:
    from rollout_traces.store import Store
    from rollout_traces.store.labels import Entry


def label(
    rollouts: list[str] | None = None,
    *,
    source: options.From,
    names: Annotated[list[str] | None, typer.Option("--as", "-a")] = None,
    note: str | None = None,
    remove: list[str] | None = None,
    turn: int | None = None,
    tokens: str | None = None,
    author: str | None = None,
    sync: str | None = None,
    as_json: options.AsJson = False,
) -> None:
    """Label rollouts or write notes on them; without a change, list what is labelled.

    Example: rollout-traces label -p gsm8k f015d31ca8e3-12 --as reward-hack --note "answers before it reads"

    Args:
        rollouts: Rollouts: uid or trace id, or the beginning of either.
        names: A label to put on; repeatable.
        note: A note to write.
        remove: A label to take off; repeatable.
        turn: On this turn alone, counted from 0.
        tokens: On these tokens alone, FIRST:END.
        author: Who you are; your login by default.
        sync: Exchange labels with the inspector at this address; its token in ROLLOUT_TRACES_TOKEN.
    """
    if (names or note or remove) and not rollouts:
        raise ConfigError("which rollouts? Name them by uid or trace id.")
    store = source.open()
    between = None if tokens is None else options.parse_pair(tokens, "--tokens", "FIRST:END, such as 12:30")
    who = author or options.login()
    for rollout in rollouts or ():
        for name in names or ():
            store.label(rollout, name, who, turn=turn, tokens=between)
        if note is not None:
            store.label(rollout, note, who, kind="note", turn=turn, tokens=between)
        for name in remove or ():
            _remove(store, rollout, name, who)
    if sync is not None:
        _sync(store, sync)
    _print(store, rollouts or [], as_json)


def _sync(store: Store, address: str) -> None:
    from rollout_traces.inspector.access import VARIABLE

    with extra("inspector", "--sync"):
        from rollout_traces.inspector.api.other_inspector import sync_labels
    done = sync_labels(store.labels, store.project, address, os.environ.get(VARIABLE))
    typer.echo(f"{address}: {done.taken} lines taken, {done.given} given.", err=True)
    if done.kept:
        typer.echo(
            f"{done.kept} lines of other writers stay here: a token gives its own name's alone.", err=True
        )
    for why in done.refused:
        typer.echo(f"not taken there: {sentence(why)}", err=True)


def _remove(store: Store, rollout: str, name: str, author: str) -> None:
    uid = store.uid(store.find(rollout))
    for entry in store.labels.of(uid):
        if entry.kind == "label" and entry.text == name:
            store.labels.remove(uid, entry.id, author)


def _print(store: Store, rollouts: list[str], as_json: bool) -> None:
    entries = store.labels.now().entries
    wanted = [store.uid(store.find(rollout)) for rollout in rollouts] or list(entries)
    found = [entry for uid in wanted for entry in entries.get(uid, ())]
    if as_json:
        print_rows([asdict(entry) for entry in found])
    elif not rollouts:
        names = store.labels.names()
        if names:
            print_table(["label", "rollouts"], [[name, n] for name, n in names.items()])
        else:
            typer.echo("Nothing is labelled. `rollout-traces label ROLLOUT --as NAME` labels one.")
    else:
        print_table(
            ["rollout", "where", "", "text", "author", "time, UTC"],
            [[e.rollout, _where(e), e.kind, e.text, e.author, e.time[:WHOLE_SECONDS]] for e in found],
        )


def _where(entry: Entry) -> str:
    if entry.start is not None:
        return f"tokens {entry.start}:{entry.stop}"
    return "" if entry.turn is None else f"turn {entry.turn}"
