"""How the token is chosen."""

from __future__ import annotations

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.access import VARIABLE, chosen_token


class TestChosenToken:
    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch):
        monkeypatch.delenv(VARIABLE, raising=False)

    def test_is_new_each_time_and_long(self):
        first, second = chosen_token("127.0.0.1", False), chosen_token("127.0.0.1", False)
        assert first != second
        assert len(first) >= 32

    def test_is_the_environments_where_that_names_one(self, monkeypatch):
        monkeypatch.setenv(VARIABLE, "sixteen letters.")
        assert chosen_token("0.0.0.0", False) == "sixteen letters."

    @pytest.mark.parametrize("token", ["short", "with a newline in it\n", "sechzehn Zeichen ä"])
    def test_that_is_short_or_odd_is_refused(self, monkeypatch, token):
        monkeypatch.setenv(VARIABLE, token)
        with pytest.raises(ConfigError, match=VARIABLE):
            chosen_token("127.0.0.1", False)

    def test_can_be_left_out_on_loopback_alone(self):
        assert chosen_token("localhost", True) is None
        for host in ("0.0.0.0", "192.168.1.7", "::"):
            with pytest.raises(ConfigError, match="--no-token with --host"):
                chosen_token(host, True)
