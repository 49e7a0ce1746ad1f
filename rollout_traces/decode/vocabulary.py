"""The bytes that every token of a tokenizer stands for, and which tokens are added or special.

Byte-level BPE writes each byte as a printable character (GPT-2's table); SentencePiece-style
tokenizers write a space as U+2581 and a bare byte as `<0x0A>`. Every reading is a proposal: it counts
only after `verify` found it equal to what the tokenizer itself decodes.

Also tokenizers that a command was given by name, or that render as their trainer renders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollout_traces.errors import ConfigError, extra

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_PIECE = "▁"
_N_SEQUENCES = 64
_SEQUENCE_LENGTH = 48
_FEW_OF = 20
"""A byte-level vocabulary has at most one name in so many that is written as it is meant."""


@dataclass(frozen=True)
class Vocabulary:
    """The bytes behind a tokenizer's ids.

    Attributes:
        kind: `tiktoken` (the tokenizer tells its bytes), `byte-level`, `sentencepiece`, `pieces` (each token decoded alone), or `tokenizer` when
            no table reproduces the tokenizer and its own `decode` must be called.
        pieces: bytes of each id; None where the tokenizer has no such id.
        added: text of each added or special token by id.
    """

    kind: str
    pieces: list[bytes | None]
    added: dict[int, str]


def read_vocabulary(tokenizer: Any) -> Vocabulary:
    """Reads and verifies the byte table of a tokenizer.

    Args:
        tokenizer: a transformers tokenizer (fast or slow), a `tokenizers.Tokenizer`, or an object with
            `decode(ids)` and `get_vocab()`.

    Returns:
        The first reading that reproduces `tokenizer.decode`, `kind="tokenizer"` when none does.

    Raises:
        ConfigError: it is no tokenizer.
    """
    check_tokenizer(tokenizer)
    names = _piece_names(tokenizer)
    added = _added_tokens(tokenizer)
    decode_many = _decoder(tokenizer)
    readings: tuple[tuple[str, Callable[[], list[bytes | None] | None]], ...] = (
        ("tiktoken", lambda: _read_tiktoken(tokenizer, added)),
        ("byte-level", lambda: _read_byte_level(names, added)),
        ("sentencepiece", lambda: _read_sentencepiece(names, added)),
        ("pieces", lambda: _read_whole_pieces(names, added, decode_many)),
    )
    for kind, read in readings:
        pieces = read()
        byte_ids = _fallback_ids(names) if kind == "sentencepiece" else frozenset()
        if pieces is not None and verify(pieces, added, decode_many, byte_ids):
            return Vocabulary(kind, pieces, added)
    return Vocabulary("tokenizer", _read_one_by_one(names, decode_many), added)


def check_tokenizer(tokenizer: Any) -> None:
    """Refuses what cannot be decoded with, such as a model's name or a processor.

    Raises:
        ConfigError: it has no `decode` or no `get_vocab`; the text says what to hand over instead.
    """
    if all(callable(getattr(tokenizer, name, None)) for name in ("decode", "get_vocab")):
        return
    instead = "AutoTokenizer.from_pretrained(...)"
    if hasattr(tokenizer, "tokenizer"):
        instead = "its .tokenizer"
    seen = repr(tokenizer) if isinstance(tokenizer, str) else f"a {type(tokenizer).__name__}"
    raise ConfigError(
        f"tokenizer: seen {seen}. Expected a tokenizer, with `decode` and `get_vocab`: hand over {instead}."
    )


def verify(
    pieces: list[bytes | None],
    added: dict[int, str],
    decode_many: Callable[[Sequence[list[int]]], list[str]],
    byte_ids: Container[int] = (),
) -> bool:
    """Compares a table with the tokenizer: every id alone, then random sequences.

    Single ids that differ are corrected in place where the tokenizer's own text is whole (an added token
    written in its own way); more than a thousandth of them means that the reading is wrong.

    Args:
        pieces: bytes by id, corrected in place.
        added: added tokens by id.
        decode_many: decodes many id lists with special tokens kept.
        byte_ids: tokens that stand for one byte of a fallback. They are compared alone only: in a run
            that is no UTF-8 the fallback gives up all of its bytes, the table keeps what is whole.

    Returns:
        True when the table reproduces the tokenizer, but for a leading space that SentencePiece-style
        decoders strip.
    """
    known = [i for i, piece in enumerate(pieces) if piece is not None]
    if not known:
        return False
    n_wrong = 0
    for i, text in zip(known, decode_many([[i] for i in known]), strict=True):
        piece = pieces[i] or b""
        if _same(piece, text):
            continue
        n_wrong += i not in added
        if "\ufffd" in text:
            return False
        pieces[i] = text.encode("utf-8", "replace")
    if n_wrong > len(known) // 1000:
        return False
    usable = [i for i in known if i not in byte_ids] or known
    draws = np.random.default_rng(0).integers(0, len(usable), (_N_SEQUENCES, _SEQUENCE_LENGTH))
    sequences = [[usable[j] for j in row] for row in draws.tolist()]
    texts = decode_many(sequences)
    return all(
        _same(b"".join(pieces[i] or b"" for i in ids), text)
        for ids, text in zip(sequences, texts, strict=True)
    )


def _same(piece: bytes, text: str) -> bool:
    ours = piece.decode("utf-8", "replace")
    return text in (ours, ours.removeprefix(" "))


def _piece_names(tokenizer: Any) -> list[str | None]:
    vocab = dict(tokenizer.get_vocab())
    names: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for name, i in vocab.items():
        names[i] = name if isinstance(name, str) else bytes(name).decode("utf-8", "replace")
    return names


def _fallback_ids(names: list[str | None]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if name and _BYTE_PIECE.fullmatch(name))


def _added_tokens(tokenizer: Any) -> dict[int, str]:
    decoder = getattr(tokenizer, "added_tokens_decoder", None)
    decoder = decoder if isinstance(decoder, Mapping) else None
    if decoder is None and hasattr(tokenizer, "get_added_tokens_decoder"):
        decoder = tokenizer.get_added_tokens_decoder()
    added = {int(i): str(getattr(token, "content", token)) for i, token in (decoder or {}).items()}
    ids, names = getattr(tokenizer, "all_special_ids", None), getattr(tokenizer, "all_special_tokens", None)
    pairs = zip(ids or (), names or (), strict=False)
    added.update((int(i), str(name)) for i, name in pairs if i is not None)
    return added


def _decoder(tokenizer: Any) -> Callable[[Sequence[list[int]]], list[str]]:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "decode_batch"):
        return lambda sequences: backend.decode_batch(list(sequences), skip_special_tokens=False)

    def decode_each(sequences: Sequence[list[int]]) -> list[str]:
        return [decode_text(tokenizer, ids) for ids in sequences]

    return decode_each


def decode_text(tokenizer: Any, ids: list[int]) -> str:
    """The tokenizer's own text of an id list, special tokens kept, nothing tidied."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "decode_batch"):
        return str(backend.decode(ids, skip_special_tokens=False))
    try:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    except TypeError:
        return str(tokenizer.decode(ids))


def _byte_characters() -> dict[str, int]:
    n_bytes = 0x100
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, n_bytes)]
    others = sorted(set(range(n_bytes)) - set(printable))
    return {chr(b): b for b in printable} | {chr(n_bytes + i): b for i, b in enumerate(others)}


_TIKTOKEN_PATHS = (
    "model",
    "tokenizer.instruct_tokenizer.tokenizer",
    "instruct_tokenizer.tokenizer",
    "tokenizer",
)
"""Attributes under which wrappers of tiktoken (Kimi's tokenizer, mistral-common's tekken) keep the table of bytes."""


def _read_tiktoken(tokenizer: Any, added: dict[int, str]) -> list[bytes | None] | None:
    for path in _TIKTOKEN_PATHS:
        inner = tokenizer
        for name in path.split("."):
            inner = getattr(inner, name, None)
        if hasattr(inner, "id_to_byte_piece"):
            return _read_tekken(inner, added)
        if hasattr(inner, "decode_single_token_bytes") and hasattr(inner, "n_vocab"):
            return _read_each(inner.decode_single_token_bytes, int(inner.n_vocab), added)
    return None


def _read_tekken(tekken: Any, added: dict[int, str]) -> list[bytes | None] | None:
    n_special = int(getattr(tekken, "num_special_tokens", 0))
    added.update({i: str(tekken.id_to_piece(i)) for i in range(n_special)})
    return _read_each(tekken.id_to_byte_piece, int(tekken.n_words), added)


def _read_each(read: Callable[[int], bytes], n: int, added: dict[int, str]) -> list[bytes | None]:
    pieces: list[bytes | None] = []
    for i in range(max(n, 1 + max(added, default=-1))):
        if i in added:
            pieces.append(added[i].encode("utf-8", "replace"))
            continue
        try:
            pieces.append(bytes(read(i)))
        except (KeyError, ValueError, IndexError):
            pieces.append(None)
    return pieces


def _read_byte_level(names: list[str | None], added: dict[int, str]) -> list[bytes | None] | None:
    byte_of = _byte_characters()
    pieces: list[bytes | None] = []
    n_literal = 0
    for i, name in enumerate(names):
        if i in added:
            pieces.append(added[i].encode("utf-8", "replace"))
        elif name is None:
            pieces.append(None)
        else:
            # as the decoder of byte-level BPE does: a name with a letter outside of the table is meant as written
            known = [byte_of.get(letter) for letter in name]
            literal = None in known
            n_literal += literal
            pieces.append(name.encode("utf-8", "replace") if literal else bytes(known))  # type: ignore[arg-type]
    return pieces if n_literal * _FEW_OF <= len(names) else None


def _read_sentencepiece(names: list[str | None], added: dict[int, str]) -> list[bytes | None] | None:
    if not any(name and name.startswith(_SPACE_PIECE) for name in names):
        return None
    pieces: list[bytes | None] = []
    for i, name in enumerate(names):
        text = added.get(i, name)
        if text is None:
            pieces.append(None)
        elif i not in added and (match := _BYTE_PIECE.fullmatch(text)):
            pieces.append(bytes([int(match[1], 16)]))
        else:
            pieces.append(text.replace(_SPACE_PIECE, " ").encode("utf-8", "replace"))
    return pieces


def _read_whole_pieces(
    names: list[str | None], added: Mapping[int, str], decode_many: Callable[[Sequence[list[int]]], list[str]]
) -> list[bytes | None] | None:
    """Each token decoded alone; None where one is a part of a character, which is U+FFFD alone and whole beside others."""
    pieces = _read_one_by_one(names, decode_many)
    torn = "\ufffd".encode()
    for i, (piece, name) in enumerate(zip(pieces, names, strict=True)):
        if i not in added and piece is not None and torn in piece and "\ufffd" not in (name or ""):
            return None
    return pieces


def _read_one_by_one(
    names: list[str | None], decode_many: Callable[[Sequence[list[int]]], list[str]]
) -> list[bytes | None]:
    known = [i for i, name in enumerate(names) if name is not None]
    pieces: list[bytes | None] = [None] * len(names)
    for i, text in zip(known, decode_many([[i] for i in known]), strict=True):
        pieces[i] = text.encode("utf-8", "replace")
    return pieces


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a folder or a name.

    Raises:
        ConfigError: there is none.
        MissingExtra: transformers is not installed.
    """
    with extra("train", "a tokenizer"):
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        is_path = path.startswith(("/", ".", "~")) and not Path(path).exists()
        reason = "there is no such folder." if is_path else str(error).split("\n")[0]
        raise ConfigError(f"tokenizer: {path}: {reason} Expected a folder with a tokenizer.json.") from error


class TemplatedTokenizer:
    """A tokenizer with a template and arguments of its own; everything else is the tokenizer's.

    Args:
        tokenizer: an object with `apply_chat_template`.
        chat_template: used instead of the tokenizer's own, unless None.
        kwargs: further arguments of the template.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None, kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(kwargs)
        if chat_template is not None:
            self._arguments["chat_template"] = chat_template

    @property
    def chat_template(self) -> Any:
        """The template that is rendered with."""
        return self._arguments.get("chat_template") or getattr(self._tokenizer, "chat_template", None)

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """The tokenizer's, with the template and its arguments where the caller gives no others."""
        return self._tokenizer.apply_chat_template(conversation, **{**self._arguments, **kwargs})

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":
            raise AttributeError(name)
        return getattr(self._tokenizer, name)
