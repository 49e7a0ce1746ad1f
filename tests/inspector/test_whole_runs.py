"""The pages on a real run of the example and on a project of ten thousand rollouts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import ROOT, Served, Visit, box_of, environment

pytestmark = pytest.mark.browser
MAKERS = (
    ["examples/tiny_grpo.py", "--steps", "4", "--warmup-steps", "60"],
    ["-m", "tests.inspector.make_large", "--traces", "10000"],
)


@dataclass(frozen=True)
class Run:
    """A run to look at.

    Attributes:
        project: its project.
        run: its name.
        last_step: its last step.
        flag: a flag that some of its rollouts carry.
        kept: how many of how many rollouts were kept, as the pages say it.
        overlay: an overlay that its tracks can show.
    """

    project: str
    run: str
    last_step: int
    flag: str
    kept: str
    overlay: str

    @property
    def place(self) -> dict[str, str]:
        """Its part of the address."""
        return {"project": self.project, "run": self.run, "split": "rollout"}


EXAMPLE = Run("tiny-grpo", "seed-0", 3, "tool_error", "128 of 256 rollouts kept", "logprob")
LARGE = Run("large", "large-run", 156, "truncated", "9,984 of 9,984 rollouts kept", "response_mask")
BOTH = pytest.mark.parametrize("run", [EXAMPLE, LARGE], ids=["example", "ten thousand"])


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The inspector over both projects, each logged by a process of its own."""
    folder = tmp_path_factory.mktemp("whole")
    makers = [
        subprocess.Popen(
            [sys.executable, *maker],
            cwd=ROOT,
            env={**environment(folder), "PYTHONPATH": str(ROOT)},
            stdout=(folder / f"maker-{at}.log").open("w"),
            stderr=subprocess.STDOUT,
        )
        for at, maker in enumerate(MAKERS)
    ]
    for at, maker in enumerate(makers):
        assert maker.wait(timeout=400) == 0, (folder / f"maker-{at}.log").read_text()[-4000:]
    server = Served(folder)
    yield server
    server.stop()


@pytest.fixture
def visit(chromium, whole_runs: Served) -> Iterator[Visit]:
    """A visit to the inspector."""
    opened = Visit(chromium, whole_runs.address)
    yield opened
    opened.close()


def rows(visit: Visit):
    """Rows of Explore's table."""
    return visit.page.locator("[data-testid='explore-table'] tbody tr")


@BOTH
class TestFromACurveToAToken:
    def test_the_latest_step_opens_and_its_neighbours_are_a_click_away(self, visit: Visit, run: Run) -> None:
        visit.open(project=run.project, tab="rollouts")
        expect(visit.get("turn").first).to_be_visible()
        expect(visit.get("step-input")).to_have_value(str(run.last_step))
        chart = visit.page.locator("[data-testid='charts'] .rt-chart-svg").first
        visit.wait_until_quiet()
        box = box_of(chart)
        chart.click(position={"x": 44, "y": box["height"] / 2})
        expect(visit.get("step-input")).not_to_have_value(str(run.last_step))
        visit.page.keyboard.press("]")
        expect(visit.get("rollout-header")).to_contain_text(f"Step {int(visit.state['step'])} ·")
        expect(visit.get("group-card").first).to_be_visible()

    def test_a_token_tells_its_values_under_an_overlay(self, visit: Visit, run: Run) -> None:
        visit.open(**run.place, step=2, overlay=run.overlay)
        expect(visit.get("legend")).to_be_visible()
        token = visit.page.locator("[data-role='assistant'] [data-testid='token']").nth(8)
        visit.wait_until_quiet()
        token.hover()
        card = visit.get("token-card").inner_text()
        for words in ("id", "position", "in the loss", "sampled"):
            assert words in card
        visit.page.mouse.move(0, 0)
        visit.page.keyboard.press("o")
        visit.page.wait_for_function(
            f"new URLSearchParams(location.search).get('overlay') !== '{run.overlay}'"
        )
        visit.page.keyboard.press("O")
        visit.page.keyboard.press("e")
        expect(visit.page.locator(".rt-at")).to_be_visible()

    def test_a_search_over_all_steps_marks_what_it_found_also_in_tokens(self, visit: Visit, run: Run) -> None:
        text = '"the answer"' if run is EXAMPLE else '"ipsum dolor"'
        visit.open(**run.place, scope="all", text=text, mode="tokens")
        expect(visit.get("population")).to_contain_text("match")
        expect(visit.get("token").first).to_be_visible()
        visit.page.wait_for_function(
            """words => {
                const found = [...(CSS.highlights.get('rt-found') ?? [])].map(range => range.toString().toLowerCase());
                return found.length > 0 && found.every(each => each === words);
            }""",
            arg=text.strip('"'),
        )
        visit.page.keyboard.press("v")
        expect(visit.page.locator(".rt-tokens:visible")).to_have_count(0)
        visit.page.wait_for_function("CSS.highlights.get('rt-found')?.size > 0")


@BOTH
class TestComparing:
    def test_best_and_worst_stand_side_by_side_under_one_range_of_colours(
        self, visit: Visit, run: Run
    ) -> None:
        visit.open(**run.place, tab="compare", step=2, overlay=run.overlay)
        expect(visit.get("compare-left")).to_be_visible()
        expect(visit.get("compare-right")).to_be_visible()
        expect(visit.get("first-divergence").first).to_be_visible()
        expect(visit.get("legend")).to_have_count(2)
        left, right = visit.get("legend").all_inner_texts()
        assert left == right
        visit.page.keyboard.press("s")
        expect(visit.get("deltas")).to_contain_text("reward")
        expect(visit.get("population")).to_contain_text("at step 2")


@BOTH
class TestExploring:
    def test_filter_sort_spread_and_the_way_back_to_a_rollout(self, visit: Visit, run: Run) -> None:
        visit.open(**run.place, tab="explore")
        expect(rows(visit)).to_have_count(100)
        expect(visit.get("population")).to_contain_text(run.kept)
        expect(visit.get("population")).to_contain_text("chosen: ")
        visit.page.locator("th button:text-is('reward')").click()
        expect(visit.page.locator("th[aria-sort='descending']")).to_have_count(1)
        visit.get("filter-input").first.fill(f"flags has '{run.flag}'")
        visit.get("filter-input").first.press("Enter")
        expect(visit.get("population")).to_contain_text("match")
        first = rows(visit).first
        expect(first).to_contain_text(run.flag.replace("_", " "))
        first.click()
        expect(
            visit.page.locator(f"[data-testid='flag'][data-flag='{run.flag}']:visible").first
        ).to_be_visible()
        visit.page.go_back()
        expect(visit.get("filter-input").first).to_have_value(f"flags has '{run.flag}'")

    def test_every_row_of_the_ledger_is_reached_by_scrolling(self, visit: Visit, run: Run) -> None:
        visit.open(**run.place, tab="explore", rows="all", hist="reward")
        expect(rows(visit).first).to_be_visible()
        expect(visit.page.locator("[data-testid='histogram'], [data-testid='facets']").first).to_be_visible()
        visit.scroll_until(151)


@BOTH
class TestHealth:
    def test_a_cell_leads_to_its_step_and_its_examples_to_a_rollout(self, visit: Visit, run: Run) -> None:
        visit.open(**run.place, tab="health")
        expect(visit.get("health-card").first).to_be_visible()
        expect(visit.get("population")).to_contain_text(run.kept)
        expect(visit.get("counters")).to_be_visible()
        visit.page.locator(f"[aria-label^='{run.flag} at step']:not([disabled])").last.click()
        expect(visit.get("examples")).to_be_visible()
        step = visit.state["step"]
        visit.get("examples").locator("[data-testid='sample-card']").first.click()
        expect(visit.get("rollout-header")).to_contain_text(f"Step {step} ·")
        expect(
            visit.page.locator(f"[data-testid='flag'][data-flag='{run.flag}']:visible").first
        ).to_be_visible()


@BOTH
class TestAddresses:
    def test_an_address_that_is_pasted_opens_what_was_seen(self, visit: Visit, chromium, run: Run) -> None:
        visit.open(**run.place, step=1)
        visit.get("sample-card").nth(3).click()
        expect(visit.get("sample-card").nth(3)).to_have_attribute("aria-current", "")
        visit.get("overlay-select").select_option("loss_mask")
        expect(visit.get("legend")).to_be_visible()
        seen, address = visit.get("rollout-header").inner_text(), visit.page.url
        other = Visit(chromium, visit.address)
        other.page.goto(address)
        expect(other.get("legend")).to_be_visible()
        assert other.get("rollout-header").inner_text() == seen
        other.close()


STATES = {
    "rollouts": {"tab": "rollouts", "step": 2},
    "tokens": {"tab": "rollouts", "step": 2, "overlay": "loss_mask"},
    "compare": {"tab": "compare", "step": 2},
    "explore": {"tab": "explore", "hist": "reward"},
    "health": {"tab": "health"},
}
PANES = ".rt-top, .rt-status, .rt-active :is(.rt-left, .rt-middle, .rt-right, .rt-compare, .rt-explore-head, .rt-health-main)"
SHOWN = ".rt-active :is([data-testid=turn], table tbody tr, [data-testid=health-card])"


class TestLooks:
    @pytest.mark.parametrize(
        ("run", "width", "height", "theme"),
        [
            (EXAMPLE, 1280, 800, "light"),
            (EXAMPLE, 1280, 800, "dark"),
            (EXAMPLE, 2560, 1300, "light"),
            (EXAMPLE, 2560, 1300, "dark"),
            (LARGE, 1280, 800, "light"),
            (LARGE, 2560, 1300, "dark"),
        ],
    )
    def test_every_page_fits_its_width(
        self, chromium, whole_runs: Served, run: Run, width: int, height: int, theme: str
    ) -> None:
        size = {"width": width, "height": height}
        visit = Visit(chromium, whole_runs.address, viewport=size, color_scheme=theme)
        for name, state in STATES.items():
            visit.open(**run.place, **state)
            expect(visit.page.locator(SHOWN).first).to_be_visible()
            expect(visit.get("population")).to_contain_text("kept")
            dark = visit.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
            assert visit.page.evaluate("document.documentElement.dataset.rtTheme") == (
                "dark" if dark else "light"
            )
            wide = visit.page.evaluate(
                "selector => [...document.querySelectorAll(selector)]"
                ".filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.className)",
                PANES,
            )
            assert wide == []
            visit.picture(f"{run.project}-{name}-{width}-{theme}")
        visit.close()
