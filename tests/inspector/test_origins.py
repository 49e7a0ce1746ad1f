"""Addresses of hosts, proxies and frames."""

from __future__ import annotations

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.guard import checked_ancestors
from rollout_traces.inspector.origins import Proxies, is_loopback


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
