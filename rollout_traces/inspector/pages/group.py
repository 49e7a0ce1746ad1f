"""A whole group at a glance: every sample's figures and actions, where their tokens part, what winners say and losers do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from rollout_traces.alarms.worn import Usual, Worn
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import Drawn, Number, drawn_by, worn_listed
from rollout_traces.inspector.pages.incidents import run_alarms
from rollout_traces.inspector.workspace import InParts, SplitView
from rollout_traces.metrics.shapes import shared_length
from rollout_traces.model.plain_values import finite_or_text
from rollout_traces.model.text import short_hash
from rollout_traces.model.transcript import Transcript
from rollout_traces.store import Group, Store, TraceRow
from rollout_traces.store.rows import known_reward, mean_of, number_of
from rollout_traces.trace.conversion import read_details, read_transcript

FIGURES = ("reward", "advantage", "n_sampled", "n_turns", "n_tool_calls", "n_tool_errors", "stop_reason")
PREVIEW = 160
"""Characters of a branch or an action that are shown."""
MOST_MEMBERS = 256


@dataclass(frozen=True)
class Member:
    """One sample of the group.

    Attributes:
        values: its columns; of the trace where it was kept, else of the ledger.
        id: the trace's id; None where the ledger alone knows it.
        transcript: the decoded rollout; None where it was not kept or has no token data.
        failed_turns: turns whose tool result says that the call failed.
    """

    values: Mapping[str, Any]
    id: str | None = None
    transcript: Transcript | None = None
    failed_turns: frozenset[int] = frozenset()


@dataclass(frozen=True)
class MemberTurn:
    """A turn of a kept sample: its tokens, names of the tools it calls, whether a call or result failed."""

    role: str
    n: int
    calls: list[str]
    failed: bool


@dataclass(frozen=True)
class Action:
    """An action of the policy: a tool call, or what it said last; equal actions have equal `name`, `text` and `whole`.

    Attributes:
        kind: `call` or `answer`.
        text: arguments, or the end of the answer.
        whole: a hash of all of it, where the text is a part.
    """

    kind: str
    name: str
    text: str
    failed: bool
    turn: int
    whole: str = ""


@dataclass(frozen=True)
class ShownMember:
    """A sample of a group; its flags as on a card."""

    id: str | None
    sample: int | None
    flags: list[str]
    explains: dict[str, list[str]]
    usual_flags: list[str]
    values: dict[str, Any]
    turns: list[MemberTurn]
    actions: list[Action]


@dataclass(frozen=True)
class Branch:
    """Tokens that some samples share, up to where they part or the one sample ends.

    Attributes:
        start: position of its first token in the rollouts.
        members: positions of the samples that go through it in the list of all, ascending.
        children: the branches that follow, most members first.
        text: its tokens, in part.
        mean: of its members' rewards.
    """

    start: int
    n_tokens: int
    members: tuple[int, ...]
    children: tuple[Branch, ...] = ()
    text: str = ""
    mean: Number = None

    @property
    def stop(self) -> int:
        """The position behind its last token."""
        return self.start + self.n_tokens


@dataclass(frozen=True)
class ShownTree:
    """The tree of tokens that a group's kept samples share until they part, from where their prompt ends."""

    prompt_tokens: int
    root: Branch


@dataclass(frozen=True)
class GroupPhrases:
    """The phrases of winners that losers do not say, and the other way round."""

    n_winners: int
    n_losers: int
    winners: tuple[ShownPhrase, ...]
    losers: tuple[ShownPhrase, ...]


@dataclass(frozen=True)
class GroupAnswer(Drawn, InParts):
    """All samples of a group, best first; the tree and phrases are of all of them.

    Attributes:
        groups: of the step.
        n_not_counted: rewards that the mean leaves out: infinite, or of a function that failed.
    """

    step: int
    group: int
    groups: list[int]
    prompt: str | None
    mean: Number
    n_not_counted: int
    tied: bool
    n_rollouts: int
    usual: list[Usual]
    components: list[str]
    members: list[ShownMember]
    tree: ShownTree | None
    phrases: GroupPhrases


def group(view: SplitView, step: int, group: int | None = None) -> GroupAnswer:
    """All samples of a group, best first, with their actions, the tree of their prefixes and telling phrases."""
    groups = view.groups(step).groups
    chosen, number = _chosen(groups, step, group)
    members = _members(view.store, chosen)
    alarms = run_alarms(view)
    kept = [at for at, member in enumerate(members) if member.transcript is not None]
    return GroupAnswer(
        step=step,
        group=number,
        groups=[each.group for each in groups if each.group is not None],
        prompt=chosen.prompt,
        mean=chosen.reward_mean,
        n_not_counted=chosen.n_not_counted,
        tied=chosen.tied,
        n_rollouts=chosen.n_rollouts,
        **drawn_by(view),
        usual=alarms.listed(),
        components=_components(members),
        members=[_described(member, alarms.worn_of(member.values, step)) for member in members],
        tree=_tree(members, kept),
        phrases=_phrases(members, kept),
    )


def _chosen(groups: Sequence[Group], step: int, wanted: int | None) -> tuple[Group, int]:
    """The group that is asked for, else the one with the most kept, and its number."""
    named = [(each, each.group) for each in groups if each.group is not None]
    found = next((pair for pair in named if pair[1] == wanted), None)
    if found is None and named and wanted is None:
        found = max(named, key=lambda pair: len(pair[0].traces))
    if found is None:
        raise StoreError(f"step {step} has no group {wanted}. Pick a group under Rollouts.")
    return found


def _members(store: Store, chosen: Group) -> list[Member]:
    """Every rollout of the group, best reward first: the kept ones, and the others from the ledger."""
    kept = [_kept(store, row) for row in chosen.traces]
    samples = {member.values.get("sample") for member in kept}
    others = [Member(row.as_dict()) for row in chosen.rows[:MOST_MEMBERS] if row["sample"] not in samples]
    return sorted([*kept, *others], key=lambda member: -(number_of(member.values.get("reward")) or 0.0))


def _kept(store: Store, row: TraceRow) -> Member:
    if row.id is None:
        return Member(row.as_dict())
    record = store.record(row.id)
    flags = read_details(record).get("flags") or ()
    failed = frozenset(flag["turn"] for flag in flags if flag.get("name") == "tool_error" and "turn" in flag)
    return Member(row.as_dict(), row.id, read_transcript(record), failed)


def _components(members: Sequence[Member]) -> list[str]:
    names = {name for member in members for name in member.values if name.startswith("component/")}
    return sorted(name for name in names if any(member.values.get(name) is not None for member in members))


def _described(member: Member, worn: Worn) -> ShownMember:
    names = [*FIGURES, *(name for name in member.values if name.startswith("component/"))]
    return ShownMember(
        id=member.id,
        sample=member.values.get("sample"),
        **worn_listed(worn),
        values={name: finite_or_text(member.values.get(name)) for name in names},
        turns=turns_of(member),
        actions=[] if member.transcript is None else actions(member.transcript, member.failed_turns),
    )


def turns_of(member: Member) -> list[MemberTurn]:
    """The turns of a kept sample; none of one that was not kept."""
    return [
        MemberTurn(
            turn.role,
            len(turn),
            [call.name or "unparsed" for call in turn.tool_calls],
            at in member.failed_turns or not all(call.parsed for call in turn.tool_calls),
        )
        for at, turn in enumerate(member.transcript.turns if member.transcript is not None else ())
    ]


def actions(transcript: Transcript, failed_turns: frozenset[int] = frozenset()) -> list[Action]:
    """Lists what the policy did, in order: its tool calls, and what it said last.

    Args:
        failed_turns: turns whose tool result says that the call failed.
    """
    found: list[Action] = []
    answered = enumerate(transcript.turns)
    failures = {turn.tool_call_id for at, turn in answered if at in failed_turns and turn.tool_call_id}
    spoken = [(at, turn) for at, turn in enumerate(transcript.turns) if turn.role == "assistant"]
    for at, turn in spoken:
        for call in turn.tool_calls:
            text = _arguments(call.arguments) if call.parsed else call.raw
            failed = not call.parsed or call.id in failures
            shown = f"{text[:PREVIEW]}…" if len(text) > PREVIEW else text
            found.append(Action("call", call.name or "unparsed", shown, failed, at, _whole(text)))
        if at == spoken[-1][0] and turn.content.strip():
            text = turn.content.strip()
            shown = f"…{text[-PREVIEW:]}" if len(text) > PREVIEW else text
            found.append(Action("answer", "answer", shown, False, at, _whole(text)))
    return found


def _whole(text: str) -> str:
    return short_hash(text).hex() if len(text) > PREVIEW else ""


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments, default=str).decode()


def _tree(members: Sequence[Member], kept: Sequence[int]) -> ShownTree | None:
    """The tree of the kept samples that have token ids; None where none has."""
    tracks = {at: each.tokens for at in kept if (each := members[at].transcript) and len(each.tokens)}
    if not tracks:
        return None
    kept = list(tracks)
    ids = [np.asarray(tokens.input_ids) for tokens in tracks.values()]
    sampled = [np.flatnonzero(tokens.response_mask) for tokens in tracks.values()]
    first = min((int(places[0]) for places in sampled if len(places)), default=0)
    root = prefix_tree(ids, min(first, shared_length(ids)))
    return ShownTree(root.start, _drawn(root, members, kept))


def _drawn(branch: Branch, members: Sequence[Member], kept: Sequence[int]) -> Branch:
    places = tuple(kept[at] for at in branch.members)
    return replace(
        branch,
        members=places,
        children=tuple(_drawn(child, members, kept) for child in branch.children),
        text=_text(members[places[0]].transcript, branch.start, branch.stop)[:PREVIEW],
        mean=mean_of(known_reward(members[at].values) for at in places),
    )


def _text(transcript: Transcript | None, start: int, stop: int) -> str:
    return "" if transcript is None or stop <= start else transcript.text_between(start, stop)


def _phrases(members: Sequence[Member], kept: Sequence[int]) -> GroupPhrases:
    """Phrases of the kept members above the mean of all members against those below it."""
    mean = mean_of(known_reward(member.values) for member in members)
    sides: tuple[list[str], list[str]] = ([], [])
    for at in kept:
        reward, transcript = known_reward(members[at].values), members[at].transcript
        if reward is None or mean is None or transcript is None or reward == mean:
            continue
        sides[reward < mean].append(_said(transcript))
    return GroupPhrases(len(sides[0]), len(sides[1]), *telling_phrases(*sides))


def _said(transcript: Transcript) -> str:
    spoken = [turn for turn in transcript.turns if turn.role == "assistant"]
    return "\n".join(f"{turn.thinking or ''}\n{turn.content}" for turn in spoken)


def prefix_tree(sequences: Sequence[np.ndarray], first: int = 0) -> Branch:
    """The compressed prefix tree of token sequences.

    Args:
        sequences: token ids, int [n_i] each; at least one.
        first: position at which the tree begins; all sequences are equal before it.

    Returns:
        The root: what all share from `first` on (no tokens where they share none).
    """
    return _branch(sequences, tuple(range(len(sequences))), first)


def _branch(sequences: Sequence[np.ndarray], members: tuple[int, ...], start: int) -> Branch:
    stop = shared_length([sequences[member] for member in members], start)
    by_token: dict[int, list[int]] = {}
    for member in members:
        if len(sequences[member]) > stop:
            by_token.setdefault(int(sequences[member][stop]), []).append(member)
    children = [_branch(sequences, tuple(found), stop) for found in by_token.values()]
    children.sort(key=lambda child: (-len(child.members), child.members))
    return Branch(start, stop - start, members, tuple(children))


LONGEST_TEXT = 40_000
"""Characters of a sample that are looked at."""
LENGTHS = (3, 2, 1)
"""Words of a phrase; a longer phrase stands for the shorter ones in it."""
MOST = 8
_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)


@dataclass(frozen=True)
class ShownPhrase:
    """A phrase that one side uses more.

    Attributes:
        text: its words.
        winners: share of the winners that say it.
        losers: share of the losers that say it.
    """

    text: str
    winners: float
    losers: float


def telling_phrases(
    winners: Sequence[str], losers: Sequence[str]
) -> tuple[tuple[ShownPhrase, ...], tuple[ShownPhrase, ...]]:
    """The phrases whose shares differ most: those of the winners, those of the losers.

    Args:
        winners: what each of the better samples says.
        losers: what each of the worse ones says.

    Returns:
        At most eight each, the largest difference first; none where a side is empty. With the few samples
        of a group these are hints, not findings.
    """
    if not winners or not losers:
        return (), ()
    told_by = [Counter(phrase for text in side for phrase in _phrases_in(text)) for side in (winners, losers)]
    phrases = [
        ShownPhrase(phrase, told_by[0][phrase] / len(winners), told_by[1][phrase] / len(losers))
        for phrase in told_by[0].keys() | told_by[1].keys()
    ]
    return (
        _largest(phrases, lambda phrase: phrase.winners - phrase.losers),
        _largest(phrases, lambda phrase: phrase.losers - phrase.winners),
    )


def _phrases_in(text: str) -> set[str]:
    words = _WORD.findall(text[:LONGEST_TEXT].lower())
    return {
        " ".join(words[at : at + length])
        for length in LENGTHS
        for at in range(len(words) - length + 1)
        if any(word[0].isalnum() for word in words[at : at + length])
    }


def _largest(phrases: Iterable[ShownPhrase], by: Callable[[ShownPhrase], float]) -> tuple[ShownPhrase, ...]:
    ranked = sorted(
        (phrase for phrase in phrases if by(phrase) >= 0.5),
        key=lambda phrase: (-by(phrase), -len(phrase.text), phrase.text),
    )
    kept: list[ShownPhrase] = []
    for phrase in ranked:
        if not any(_within(phrase.text, other.text) or _within(other.text, phrase.text) for other in kept):
            kept.append(phrase)
        if len(kept) == MOST:
            break
    return tuple(kept)


def _within(part: str, whole: str) -> bool:
    return f" {part} " in f" {whole} "
