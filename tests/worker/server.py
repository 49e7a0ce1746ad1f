"""A self-hosted Trackio server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


class Server:
    """A server on a folder and a port of its own, on loopback.

    Args:
        folder: its Trackio folder; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.address}?write_token=right"
        self._process: subprocess.Popen | None = None

    def start(self) -> Server:
        """Starts it and waits until it answers."""
        code = (
            "import os, trackio\n"
            "trackio.show(project='p', open_browser=False, server_port=int(os.environ['PORT']), block_thread=True)\n"
        )
        environment = {
            **os.environ,
            "TRACKIO_DIR": str(self.folder),
            "TRACKIO_WRITE_TOKEN": "right",
            "GRADIO_SERVER_PORT": str(self.port),
            "PORT": str(self.port),
        }
        with (self.folder.parent / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], env=environment, stdout=output, stderr=output
            )
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            assert self._process.poll() is None, (self.folder.parent / "server.log").read_text()
            time.sleep(0.2)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
