"""Saves a tokenizer as files, so that another process can decode, also after this one has died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import StoreError, extra
from rollout_traces.model.private_files import close_files, make_folder

FINGERPRINT = "fingerprint.json"
SAMPLES = 64
"""Token ids, spread over the vocabulary, whose texts must come back the same."""


def save_tokenizer(tokenizer: Any, folder: Path) -> bool:
    """Writes a tokenizer into a folder.

    Args:
        tokenizer: a transformers tokenizer that has a `tokenizer.json`, or a `tokenizers.Tokenizer`.
        folder: the folder; it is made.

    Returns:
        False when it cannot be written so that it comes back the same: it then works in this process only.
    """
    make_folder(folder)
    try:
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(str(folder))
        else:
            tokenizer.save(str(folder / "tokenizer.json"))
        (folder / FINGERPRINT).write_bytes(orjson.dumps(_fingerprint(tokenizer)))
        close_files(folder)
    except Exception:  # noqa: BLE001  whatever a tokenizer of the caller's raises: it stays here, as the answer says
        return False
    return (folder / "tokenizer.json").exists()


def load_tokenizer(folder: Path) -> Any:
    """Reads what `save_tokenizer` wrote, without torch and without the network.

    Raises:
        StoreError: what comes back is not the same tokenizer.
    """
    expected = orjson.loads((folder / FINGERPRINT).read_bytes())
    for load in (_load_plain, _load_by_class):
        tokenizer = load(folder)
        seen = _fingerprint(tokenizer)
        if seen == expected:
            return tokenizer
    raise StoreError(
        f"tokenizer in {folder}: seen {seen['size']} tokens, expected {expected['size']} and the same texts. "
        "Use worker='thread' for a tokenizer that does not survive save_pretrained."
    )


def _load_plain(folder: Path) -> Any:
    """From `tokenizer.json` alone, which needs no torch."""
    if not (folder / "tokenizer_config.json").exists():
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    with extra("train", "this run's tokenizer"):
        from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)


def _load_by_class(folder: Path) -> Any:
    """As the class that the tokenizer was saved from."""
    with extra("train", "this run's tokenizer"):
        from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def _fingerprint(tokenizer: Any) -> dict[str, Any]:
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else tokenizer.get_vocab_size()
    ids = list(range(0, size, max(size // SAMPLES, 1)))
    return {
        "size": size,
        "texts": [tokenizer.decode([token]) for token in ids],
        "template": str(getattr(tokenizer, "chat_template", None)),
    }
