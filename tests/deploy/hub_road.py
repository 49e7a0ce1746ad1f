"""The road between a run and its Space, on loopback: a proxy that answers for `*.hf.space` over https.

Clients are led there by `HTTPS_PROXY` and believe it by `SSL_CERT_FILE`; behind it the Space's app is asked as the
Hub's ingress asks it, over http with the browser's scheme and Host forwarded.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Road:
    """How to get to the Space.

    Attributes:
        proxy: for `HTTPS_PROXY`.
        certificates: for `SSL_CERT_FILE`.
    """

    proxy: str
    certificates: Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a client."""
        return {"HTTPS_PROXY": self.proxy, "SSL_CERT_FILE": str(self.certificates), "NO_PROXY": "127.0.0.1"}


@contextmanager
def road_to(port: int, host: str, folder: Path) -> Iterator[Road]:
    """Leads https requests for `host` to an application on a port of loopback, until the block ends."""
    authority = trustme.CA()
    certificates = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(certificates))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    loop = asyncio.new_event_loop()
    proxy_port: list[int] = []
    ready = threading.Event()

    async def serve() -> None:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _answer(reader, writer, context, host, port)

        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        proxy_port.append(server.sockets[0].getsockname()[1])
        ready.set()

    starting = loop.create_task(serve())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield Road(f"http://127.0.0.1:{proxy_port[0]}", certificates)
    finally:
        loop.call_soon_threadsafe(starting.cancel)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    host: str,
    port: int,
) -> None:
    try:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if not asked.startswith(f"CONNECT {host}:443 "):
            writer.write(b"HTTP/1.1 502 Not this way\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await writer.drain()
        await writer.start_tls(context)
        head = await reader.readuntil(b"\r\n\r\n")
        added = f"X-Forwarded-Proto: https\r\nX-Forwarded-Host: {host}\r\nConnection: close\r\n\r\n"
        kept = b"\r\n".join(
            line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")
        )
        app_reader, app_writer = await asyncio.open_connection("127.0.0.1", port)
        app_writer.write(kept + b"\r\n" + added.encode())
        await asyncio.gather(_pass_on(reader, app_writer), _pass_on(app_reader, writer, close=True))
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, close: bool = False) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if close:
        writer.close()
