"""A Hub on loopback: the routes that `huggingface_hub` calls for `deploy`, a Space's writers and readers of a data
set's files, and no others.

Written from what the client sends; what it does not know is answered with 501 and kept, so that a test fails.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

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
class Dataset:
    """What the Hub knows of one data set: its files by path."""

    files: dict[str, bytes] = field(default_factory=dict)

    def entry(self, path: str) -> dict[str, Any] | None:
        """What the Hub says of a path: a file, or a folder that holds some."""
        if path in self.files:
            data = self.files[path]
            return {
                "type": "file",
                "path": path,
                "size": len(data),
                "oid": hashlib.sha1(data).hexdigest(),
                "lastCommit": {"id": "d" * 40, "title": "files", "date": "2026-01-01T00:00:00.000Z"},
            }
        if any(name.startswith(f"{path}/") for name in self.files):
            return {"type": "directory", "path": path, "oid": "e" * 40}
        return None

    def below(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        """The entries of a folder."""
        start = f"{folder}/" if folder else ""
        paths: dict[str, None] = {}
        for name in self.files:
            if name.startswith(start):
                parts = name[len(start) :].split("/")
                depth = len(parts) if recursive else 1
                paths.update((start + "/".join(parts[:at]), None) for at in range(1, depth + 1))
        return [entry for path in paths if (entry := self.entry(path)) is not None]


@dataclass
class LoopbackHub:
    """A Hub in this process.

    Attributes:
        address: what `HF_ENDPOINT` is set to.
        spaces: the Spaces by name.
        datasets: the data sets by name.
        buckets: the buckets' names, and whether they are private.
        unknown: requests that it has no route for.
        failures: status by the beginning of `METHOD path`: what is answered instead; 0: the connection
            is closed in the middle of the answer.
    """

    address: str = ""
    spaces: dict[str, Space] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)
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
        path = request.url.path.strip("/").split("/")
        if "datasets" in path[:2]:
            return self._dataset(request, path, await request.body()) or self._unknown(asked)
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
        return self._unknown(asked)

    def _unknown(self, asked: str) -> Response:
        self.unknown.append(asked)
        return _error(501)

    def _dataset(self, request: Request, path: list[str], body: bytes) -> Response | None:
        owner, name = path[2:4] if path[0] == "api" else path[1:3]
        dataset = self.datasets.get(f"{owner}/{name}")
        if dataset is None:
            return _error(404, "RepoNotFound")
        match request.method, path:
            case "GET", ["api", "datasets", _, _] | ["api", "datasets", _, _, "revision", _]:
                return JSONResponse(
                    {"_id": "1", "id": f"{owner}/{name}", "sha": "d" * 40, "tags": [], "siblings": []}
                )
            case "GET", ["api", "datasets", _, _, "tree", _, *folder]:
                recursive = request.query_params.get("recursive", "").lower() == "true"
                found = dataset.below("/".join(folder), recursive=recursive)
                return JSONResponse(found) if found else _error(404, "EntryNotFound")
            case "POST", ["api", "datasets", _, _, "paths-info", _]:
                asked = parse_qs(body.decode()).get("paths", [])
                return JSONResponse([entry for each in asked if (entry := dataset.entry(each)) is not None])
            case "GET" | "HEAD", ["datasets", _, _, "resolve", _, *file]:
                data = dataset.files.get("/".join(file))
                return _error(404, "EntryNotFound") if data is None else _ranged(request, data)
        return None

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
            asked = json.loads(body or b"{}")
            self.buckets[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
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


def _ranged(request: Request, data: bytes) -> Response:
    """A file, or the bytes of it that were asked for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    headers = {
        "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
        "X-Repo-Commit": "d" * 40,
        "Accept-Ranges": "bytes",
    }
    if found is None:
        return Response(data, headers=headers)
    first, last = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], status_code=206, headers=headers)


def _error(status: int, code: str = "") -> Response:
    headers = {"X-Error-Code": code} if code else {}
    return JSONResponse({"error": f"status {status}"}, status_code=status, headers=headers)
