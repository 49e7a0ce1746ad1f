"""Secrets in a run's config: texts whose name or shape says key, token or password are stored as `***`."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any

from rollout_traces.model.text import words

log = logging.getLogger("rollout_traces")

MASK = "***"
SHORTEST = 8
"""Characters below which what a `token` holds is no secret."""
SECRET_WORDS = frozenset(
    words(
        "password passwords passwd passphrase secret secrets credential credentials webhook authorization "
        "bearer cookie cookies"
    )
)
"""A name that ends in one of these names a secret."""
PASSWORD = re.compile(r"\w*(?:password|passwd|passphrase)")
"""Words that others are written together with: `PGPASSWORD`, `dbpassword`."""
PASS_OWNERS = frozenset(
    ["auth", "database", "db", "ftp", "mail", "mysql", "postgres", "redis", "smtp", "ssh", "user"]
)
"""`<one of these>_pass` names a secret; `first_pass` does not."""
KEY_OWNERS = frozenset(
    words(
        "access account admin anthropic api app auth aws azure client cohere comet deepseek encryption gemini "
        "google groq hf hmac hub huggingface langfuse license master mistral neptune openai openrouter "
        "personal private root secret service session signing ssh storage swanlab together wandb write"
    )
)
"""`<one of these>_key` names a secret; `prompt_key` and `reward_fn_key` name columns."""
TOKEN_OWNERS = KEY_OWNERS | frozenset(
    words("bearer bot csrf github gitlab id jwt login oauth read refresh sas slack user")
)
"""`<one of these>_token` names a secret; `pad_token` and `eos_token` are of a vocabulary."""
SHAPES = re.compile(
    r"""
    \bhf_[A-Za-z0-9]{24,}\b | \bsk-[A-Za-z0-9_\-]{20,} | \bgh[opsu]_[A-Za-z0-9]{30,}\b | \bgithub_pat_\w{30,}
    | \bglpat-[\w\-]{20,} | \bxox[abprs]-[\w\-]{10,} | \bAKIA[0-9A-Z]{16}\b | \bAIza[\w\-]{35}
    | \bgsk_[A-Za-z0-9]{40,} | \br8_[A-Za-z0-9]{30,} | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[\w\-]{40,}
    | \beyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]{8,} | \bwandb_v1_\w{20,} | (?<=Bearer\ )[\w\-.~+/=]{8,}
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?<=hooks\.slack\.com/)[\w/]{8,} | (?<=/api/webhooks/)[\w/\-]{8,}
    | (?<=://)[^/\s:@]*:[^/\s@]+(?=@) | (?<=[?&])(?<!\\)(?:access_token|write_token|token|api_key|apikey|key|password|sig|X-Amz-Signature)=[^&\s\#]+
    """,
    re.VERBOSE,
)
"""Keys as their makers shape them, and the user, password and token of an address, wherever they stand in a text."""
ASSIGNED = re.compile(r"(?<![\w.\-])(-{0,2})([A-Za-z][\w.\-]{0,60})(=|(?<=\w) )(['\"]?)([^\s'\"&;]{4,})")
"""A name with a value, as command lines and environments are written: `judge.api_key=...`, `--api-key ...`."""
HEX_KEY = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A key of Weights & Biases, and of others; under a name that says neither key nor token it is a commit."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_JOINED = re.compile(r"^\w*?(api|access|auth|private|secret|hf|write|refresh)(keys?|tokens?)$")
_VOCABULARY = re.compile(r"\s|<|\[")


def without_secrets(
    config: Mapping[str, Any], allowed: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """A config with its secrets as `***`.

    Args:
        config: plain values, mappings and lists of them.
        allowed: names whose values are kept as they are: `token`, or `data.token` for one place alone.

    Returns:
        The config, and the names of what was masked, each with those above it.
    """
    masked: list[str] = []
    return {
        str(key): _kept(value, (str(key),), frozenset(allowed), masked) for key, value in config.items()
    }, masked


def stored_config(config: Mapping[str, Any], allowed: Collection[str] = ()) -> dict[str, Any]:
    """A config as it is stored; what was masked is said in a warning. Arguments as of `without_secrets`."""
    stored, masked = without_secrets(config, allowed)
    if masked:
        log.warning(
            "config: %s looks like a secret and is stored as %s; not_secret=[%r] stores one as it is.",
            ", ".join(masked),
            MASK,
            masked[0],
        )
    return stored


def names_a_secret(name: str, text: str) -> bool:
    """Tells whether a text under a name is a secret by that name.

    Args:
        name: the innermost name: `api_key`, `hfToken`, `WANDB_API_KEY`.
        text: what it holds.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if words[-2:] in (["webhook", "url"], ["webhook", "uri"]):
        words.pop()
    if words and (joined := _JOINED.match(words[-1])):
        words[-1:] = [joined[1], joined[2]]
    last, before = (words or [""])[-1], (words[-2] if len(words) > 1 else "")
    if last in SECRET_WORDS or PASSWORD.fullmatch(last) or (last == "pass" and before in PASS_OWNERS):
        return bool(text)
    if last == "pwd":
        return bool(text) and "/" not in text
    if last in ("key", "keys"):
        return (before in KEY_OWNERS and bool(text)) or bool(HEX_KEY.fullmatch(text))
    if last in ("token", "tokens"):
        known = before in TOKEN_OWNERS or len(words) == 1
        return known and len(text) >= SHORTEST and not _VOCABULARY.search(text)
    return False


def _kept(value: Any, names: tuple[str, ...], allowed: frozenset[str], masked: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _kept(item, (*names, str(key)), allowed, masked) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_kept(item, names, allowed, masked) for item in value]
    path = ".".join(names)
    if not isinstance(value, str) or value == MASK or names[-1] in allowed or path in allowed:
        return value
    shown = MASK if names_a_secret(names[-1], value) else ASSIGNED.sub(_assigned, SHAPES.sub(MASK, value))
    if shown != value and path not in masked:
        masked.append(path)
    return shown


def _assigned(found: re.Match[str]) -> str:
    """Masks a value that a text gives to a name: behind a blank only where the name is an option's."""
    dashes, name, sign, quote, value = found.groups()
    if (sign == " " and not dashes) or value == MASK or not names_a_secret(name, value):
        return found[0]
    return f"{dashes}{name}{sign}{quote}{MASK}"
