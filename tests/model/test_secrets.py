"""What of a config is stored as `***`, and what never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.model.secrets import MASK, stored_config, without_secrets

LONG = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"


@pytest.mark.parametrize(
    "name",
    ["api_key", "WANDB_API_KEY", "hf_token", "HF_TOKEN", "apiKey", "hfToken", "accessToken", "apikey", "authtoken",
     "token", "password", "db.password", "secret", "client_secret", "aws_secret_access_key", "private_key",
     "alert_webhook", "write_token", "openai-api-key", "api_keys", "smtp_passwd", "PGPASSWORD", "dbpassword",
     "password2", "DB_PWD", "db_pass", "API_KEY_2", "WANDBAPIKEY", "slack_webhook_url", "bearer_token", "session_cookie",
     "master_key"],
)  # fmt: skip
def test_a_text_whose_name_says_secret_is_masked(name):
    assert without_secrets({name: LONG}) == ({name: MASK}, [name])
    assert without_secrets({"a": {name: [LONG]}})[0] == {"a": {name: [MASK]}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "4096"), ("max_tokens", 4096), ("tokenizer", "Qwen/Qwen3-0.6B"), ("tokenizer_path", "/models/a"),
        ("pad_token", "<|endoftext|>"), ("eos_token", "</s>"), ("bos_token", "beginning"), ("stop_token", "Observation:"),
        ("token", "<|im_end|>"), ("prompt_key", "prompt"), ("reward_fn_key", "data_source"), ("key", "question"),
        ("sort_key", "length_of_the_prompt"), ("keys", "loss,reward"), ("api_key_env", "OPENAI_API_KEY"),
        ("token_path", "/run/secrets/token"), ("use_auth_token", True), ("password", None), ("secret", ""),
        ("n_tokens", "12345678"), ("tokens", 5), ("token_level_loss", "token-mean"), ("commit", "a" * 40),
        ("PWD", "/home/ann/run"), ("first_pass", "greedy-decoding"), ("command", "--max-tokens 16384 --pad-token endoftext"),
        ("overrides", "data.prompt_key=question"), ("note", "the api key is elsewhere"), ("webhook_url", None),
        ("url", "http://127.0.0.1:8000/v1"), ("path", "s3://bucket/a:b/c@d"), ("note", "sk-learn and hf_xet"),
    ],
)  # fmt: skip
def test_what_is_none_is_kept(name, value):
    assert without_secrets({name: value}) == ({name: value}, [])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"hf_{LONG}", MASK),
        (f"--token hf_{LONG} --lr 1", f"--token {MASK} --lr 1"),
        (f"sk-proj-{LONG}", MASK),
        (f"ghp_{LONG}{LONG}", MASK),
        (f"--api-key {LONG} --lr 1", f"--api-key {MASK} --lr 1"),
        (f"--judge.api_key={LONG}", f"--judge.api_key={MASK}"),
        (f"OPENAI_API_KEY='{LONG}' python x", f"OPENAI_API_KEY='{MASK}' python x"),
        ("https://hooks.slack.com/services/T0000/B000/XXXXXXXX", f"https://hooks.slack.com/{MASK}"),
        (f"https://host/a.parquet?sig={LONG}&se=1", f"https://host/a.parquet?{MASK}&se=1"),
        (f"gsk_{LONG}{LONG}", MASK),
        ("AKIAIOSFODNN7EXAMPLE", MASK),
        (f"Authorization: Bearer {LONG}", f"Authorization: Bearer {MASK}"),
        ("postgres://ann:hush@db:5432/runs", f"postgres://{MASK}@db:5432/runs"),
        ("https://host/trackio/?write_token=abc&x=1", f"https://host/trackio/?{MASK}&x=1"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", MASK),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r", MASK),
    ],
)
def test_a_key_is_known_by_its_shape_wherever_it_stands(text, kept):
    assert without_secrets({"command": text}) == ({"command": kept}, ["command"])


def test_a_hexadecimal_key_is_one_under_a_name_that_says_so():
    assert without_secrets({"key": "0123456789abcdef" * 2 + "01234567"})[0] == {"key": MASK}


def test_a_name_can_be_allowed_everywhere_or_in_one_place():
    config = {"data": {"token": LONG}, "token": LONG}
    assert without_secrets(config, ["token"]) == (config, [])
    assert without_secrets(config, ["data.token"]) == ({"data": {"token": LONG}, "token": MASK}, ["token"])


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=60), max_size=5))
def test_masking_twice_is_masking_once(config):
    once, _ = without_secrets(config)
    assert without_secrets(once) == (once, [])


def test_a_long_text_takes_time_in_proportion_to_its_length():
    for piece in ("://", "a:", "eyJ-.", "-----BEGIN ", "sk-", "?key=", "hf_", "--a", "a.", "a="):
        assert without_secrets({"template": piece * 40_000})


def test_a_warning_says_what_is_masked_and_how_it_is_kept(caplog):
    assert stored_config({"hf_token": LONG, "lr": 1}) == {"hf_token": MASK, "lr": 1}
    assert "hf_token looks like a secret" in caplog.text and "not_secret=['hf_token']" in caplog.text
    caplog.clear()
    assert stored_config({"hf_token": LONG}, ["hf_token"]) == {"hf_token": LONG}
    assert not caplog.records
