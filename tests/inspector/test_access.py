"""How tokens are chosen, and which addresses, hosts and proxies are told apart."""

from __future__ import annotations

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.access import NAMED, VARIABLE, Proxies, chosen_token, is_loopback, named_tokens
from rollout_traces.inspector.guard import checked_ancestors


class TestChosenToken:
    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch):
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.delenv(NAMED, raising=False)

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

    def test_cannot_be_left_out_beside_tokens_by_name(self, monkeypatch):
        monkeypatch.setenv(NAMED, "ben=the-token-of-ben")
        with pytest.raises(ConfigError, match="--no-token with ROLLOUT_TRACES_TOKENS"):
            chosen_token("localhost", True)


class TestNamedTokens:
    def test_stand_with_blanks_or_commas_between(self):
        given = {NAMED: " ben=the-token-of-ben,eva=the-token-of=eva\n"}
        assert named_tokens(given, "ann") == {"ben": "the-token-of-ben", "eva": "the-token-of=eva"}
        assert named_tokens({}, "ann") == {}

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("the-token-of-nobody", "entry 0 is no name=token"),
            ("ann=the-token-of-ann", "ann: the name or its token is another's"),
            ("visitor=the-token-of-all", "another's"),
            ("ben=the-token-of-ben ben=the-token-of-bob", "another's"),
            ("ben=the-token-of-both eva=the-token-of-both", "another's"),
            ("ben=short", "ben: seen 5 characters"),
            ("eva=the-token-of-eva be/n=the-token-of-ben", "entry 1 is no name=token"),
        ],
    )
    def test_that_are_odd_are_refused(self, given, said):
        with pytest.raises(ConfigError, match=said):
            named_tokens({NAMED: given}, "ann")


class TestLoopback:
    def test_knows_names_and_addresses(self):
        assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]")))
        assert not any(map(is_loopback, ("0.0.0.0", "192.168.1.1", "example.org", "")))


class TestOptions:
    @pytest.mark.parametrize("address", ["", "proxy.example", "*", "10.0.0.0/99"])
    def test_a_proxy_that_is_no_address_is_refused(self, address):
        with pytest.raises(ConfigError, match="--trusted-proxy: seen"):
            Proxies.of([address])

    @pytest.mark.parametrize(
        "site", ["http://hub.example", "https://", "*", "https://a b", "https://a.example/path", "'self'"]
    )
    def test_a_frame_ancestor_that_is_no_https_origin_is_refused(self, site):
        with pytest.raises(ConfigError, match="--frame-ancestor: seen"):
            checked_ancestors([site])
