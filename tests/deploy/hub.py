"""A Hub on loopback: the routes that `huggingface_hub` calls for `deploy` and a Space's writers, and no others.

Written from what the client sends; what it does not know is answered with 501 and kept, so that a test fails.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

WRITER = "hf_writer"
READER = "hf_reader"
"""The tokens that it knows: one may write, one may only read."""


CUT = 299
"""The status of an answer that breaks off."""


@dataclass
class Space:
    """What the Hub knows of one Space."""

    private: bool
    sdk: str
    files: dict[str, bytes] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0


@dataclass
class LoopbackHub:
    """A Hub in this process.

    Attributes:
        address: what `HF_ENDPOINT` is set to.
        spaces: the Spaces by name.
        buckets: the buckets' names, and whether they are private.
        unknown: requests that it has no route for.
        failures: status by the beginning of `METHOD path`: what is answered instead; 0: the connection
            is closed in the middle of the answer.
    """

    address: str = ""
    spaces: dict[str, Space] = field(default_factory=dict)
    buckets: dict[str, bool] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    async def answer(self, request: Request) -> Response:
        """Answers one request."""
        asked = f"{request.method} {request.url.path}"
        self.asked.append(asked)
        for begin, status in self.failures.items():
            if asked.startswith(begin):
                return _error(status or CUT)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in (WRITER, READER):
            return _error(401)
        if token == READER and (request.method != "GET" or asked.endswith("/write")):
            return _error(403)
        return self._route(
            request.method, request.url.path.strip("/").split("/"), await request.body(), asked
        )

    def _route(self, method: str, path: list[str], body: bytes, asked: str) -> Response:
        match method, path:
            case "GET", ["api", "whoami-v2"]:
                return JSONResponse({"type": "user", "name": "ada", "orgs": [], "auth": {}})
            case "POST", ["api", "repos", "create"]:
                return self._create(json.loads(body))
            case "POST", ["api", "validate-yaml"]:
                return JSONResponse({"errors": [], "warnings": []})
            case _, ["api", "buckets", owner, name]:
                return self._bucket(method, f"{owner}/{name}", body)
            case _, ["api", "spaces", owner, name, *rest]:
                space = self.spaces.get(f"{owner}/{name}")
                if space is None:
                    return _error(404, "RepoNotFound")
                answer = self._space(method, f"{owner}/{name}", space, rest, body)
                if answer is not None:
                    return answer
            case "GET", ["spaces", owner, name, "resolve", _, *file]:
                space = self.spaces.get(f"{owner}/{name}")
                if space is None or "/".join(file) not in space.files:
                    return _error(404, "EntryNotFound")
                return Response(space.files["/".join(file)])
        self.unknown.append(asked)
        return _error(501)

    def _create(self, asked: dict[str, Any]) -> Response:
        name = "/".join(part for part in (asked.get("organization") or "ada", asked["name"]) if part)
        if name in self.spaces:
            return _error(409)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.spaces[name] = Space(private, asked["sdk"])
        return JSONResponse({"url": f"{self.address}/spaces/{name}", "name": name, "id": "1"})

    def _bucket(self, method: str, name: str, body: bytes) -> Response:
        if method == "POST":
            if name in self.buckets:
                return JSONResponse({"url": f"{self.address}/buckets/{name}"}, status_code=409)
            self.buckets[name] = json.loads(body or b"{}").get("visibility") == "private"
        elif name not in self.buckets:
            return _error(404, "RepoNotFound")
        return JSONResponse(
            {"id": name, "url": f"{self.address}/buckets/{name}", "private": self.buckets[name]}
        )

    def _space(self, method: str, name: str, space: Space, rest: list[str], body: bytes) -> Response | None:
        match method, rest:
            case "GET", [] | ["revision", _]:
                files = [{"rfilename": path} for path in space.files]
                info = {"_id": "1", "id": name, "private": space.private, "sdk": space.sdk, "sha": "a" * 40}
                return JSONResponse(info | {"siblings": files, "runtime": self._runtime(space), "tags": []})
            case "GET", ["auth-check", *_]:
                return JSONResponse({})
            case "GET", ["runtime"]:
                return JSONResponse(self._runtime(space))
            case "GET", ["variables"]:
                return JSONResponse({key: {"value": value} for key, value in space.variables.items()})
            case "POST", ["variables" | "secrets" as kind]:
                sent = json.loads(body)
                (space.variables if kind == "variables" else space.secrets)[sent["key"]] = sent["value"]
                return JSONResponse({key: {"value": value} for key, value in space.variables.items()})
            case "PUT", ["volumes"]:
                space.volumes = json.loads(body)["volumes"]
                return JSONResponse({})
            case "GET", ["tree", _, *_folder]:
                return JSONResponse(
                    [
                        {"type": "file", "path": p, "size": len(c), "oid": "b" * 40}
                        for p, c in space.files.items()
                    ]
                )
            case "POST", ["preupload", _]:
                asked = json.loads(body)["files"]
                return JSONResponse(
                    {
                        "files": [
                            {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked
                        ]
                    }
                )
            case "POST", ["commit", _]:
                return self._commit(name, space, body)
        return None

    def _runtime(self, space: Space) -> dict[str, Any]:
        return {
            "stage": "RUNNING",
            "hardware": {"current": None, "requested": None},
            "volumes": space.volumes,
        }

    def _commit(self, name: str, space: Space, body: bytes) -> Response:
        files = dict(space.files)
        for line in body.decode().splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                assert value["encoding"] == "base64"
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        space.files = files
        space.commits += 1
        return JSONResponse(
            {
                "commitUrl": f"{self.address}/spaces/{name}/commit/{'c' * 40}",
                "commitOid": "c" * 40,
                "success": True,
            }
        )


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """A Hub that listens until the block ends."""
    hub = LoopbackHub()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        response = await hub.answer(Request(scope, receive))
        if response.status_code == CUT:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99")]}
            )
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
            return
        await response(scope, receive, send)

    with serving(app) as port:
        hub.address = f"http://127.0.0.1:{port}"
        yield hub


@contextmanager
def serving(app: Any) -> Iterator[int]:
    """An ASGI application on a free port of loopback, in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


def _error(status: int, code: str = "") -> Response:
    headers = {"X-Error-Code": code} if code else {}
    return JSONResponse({"error": f"status {status}"}, status_code=status, headers=headers)
