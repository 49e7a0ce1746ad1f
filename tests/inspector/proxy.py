"""A real nginx on loopback in front of the inspector, as a team would put one there."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.inspector.conftest import free_port

PREFIX = "/tools/rollouts"
CONFIG = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
daemon off;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location = /elsewhere {{ return 200 "another service"; }}
    location {prefix}/ {{
      proxy_pass {inner};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_buffering off;
    }}
  }}
}}
"""


class Proxy:
    """nginx serving an address under PREFIX.

    Args:
        inner: the address behind it.
        folder: for its configuration, logs and temporary files.
        strips: whether the prefix is taken off before a request is passed on.
    """

    def __init__(self, inner: str, folder: Path, *, strips: bool) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}{PREFIX}"
        self._folder = folder
        config = folder / "nginx.conf"
        config.write_text(
            CONFIG.format(
                folder=folder, port=self.port, prefix=PREFIX, inner=f"{inner}/" if strips else inner
            )
        )
        self._process = subprocess.Popen(
            [nginx() or "nginx", "-p", str(folder), "-c", str(config)], stderr=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/elsewhere", timeout=5)
                return
            except (urllib.error.URLError, OSError):
                assert self._process.poll() is None, (self._folder / "error.log").read_text()
                time.sleep(0.1)
        raise AssertionError("nginx does not answer")

    def stop(self) -> None:
        """Ends nginx."""
        self._process.terminate()
        self._process.wait(timeout=20)


def nginx() -> str | None:
    """The program, None where it is not installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
