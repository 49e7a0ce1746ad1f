"""The frame: pages, projects, keyboard, theme, help."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Visit, box_of

pytestmark = pytest.mark.browser


class TestPagesAndProjects:
    def test_without_a_project_they_are_listed(self, visit):
        visit.open()
        expect(visit.get("project-card")).to_have_count(5)
        demo = visit.get("project-card").filter(has_text="demo")
        expect(demo).to_contain_text("2 runs")
        visit.picture("projects")
        demo.click()
        expect(visit.get("run-verdict")).to_be_visible()
        assert visit.state["project"] == "demo"

    def test_a_project_says_when_it_was_last_written_and_how_its_reward_went(self, visit):
        """Seen once: projects were two cards on an empty page."""
        visit.open()
        card = visit.get("project-card").filter(has_text="demo")
        expect(card).to_contain_text("run-b, step 2")
        expect(card).to_contain_text(re.compile("just now|ago"))
        expect(card.locator(".rt-chart-svg path")).to_be_visible()

    def test_trackio_opens_on_the_same_project(self, visit):
        """Seen once: the link to Trackio dropped the project."""
        visit.open(project="demo", run="run-a")
        expect(visit.get("trackio-link")).to_have_attribute(
            "href", re.compile(r"^/trackio/[0-9a-f]{64}/\?project=demo$")
        )

    def test_the_address_at_trackio_follows_the_page(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        link = visit.get("trackio-link")
        expect(link).to_have_attribute("href", re.compile(r"/traces\?project=demo&run_ids=\w+$"))
        visit.get("tab-health").click()
        expect(link).to_have_attribute("href", re.compile(r"/\?project=demo$"))

    def test_digits_open_the_pages(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        for key, tab in (
            ("3", "explore"),
            ("4", "health"),
            ("6", "run"),
            ("2", "compare"),
            ("1", "rollouts"),
        ):
            visit.page.keyboard.press(key)
            visit.page.wait_for_function(f"new URLSearchParams(location.search).get('tab') === '{tab}'")
        expect(visit.get("turn").first).to_be_visible()

    def test_what_an_address_leaves_open_is_written_into_it_and_is_no_step_back(self, visit):
        visit.open(project="demo", run="run-a", split="rollout", step=4)
        expect(visit.get("turn").first).to_be_visible()
        steps = visit.page.evaluate("history.length")
        visit.page.wait_for_function("new URLSearchParams(location.search).get('tab') === 'rollouts'")
        assert visit.page.evaluate("history.length") == steps

    def test_no_page_moves_when_the_bar_of_incidents_is_drawn(self, visit):
        """Seen once: each page went down by 30 points a second after it was drawn."""
        held = visit.hold("incident_bar")
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        expect(visit.get("turn").first).to_be_visible()
        page = visit.page.locator(".rt-page.rt-active")
        before = box_of(page)
        held.let_go()
        expect(visit.get("bar-signal")).to_be_visible()
        assert box_of(page) == before

    def test_the_title_names_the_page(self, visit):
        visit.open(tab="health", project="demo", run="run-a", step=4)
        expect(visit.page).to_have_title("Health · step 4 · run-a · rollout traces")
        visit.open(tab="projects", project="demo", run="run-a")
        expect(visit.page).to_have_title("Projects · rollout traces")
        expect(visit.page.locator(".rt-live")).to_be_empty()

    def test_the_run_can_be_changed(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        visit.get("run-select").select_option("run-b")
        expect(visit.get("step-input")).to_have_value("2")

    def test_a_long_name_of_a_run_leaves_room_for_project_and_split(self, visit):
        """Seen once: beside 195 signs the project was called `w…`."""
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        visit.get("run-select").evaluate("node => { node.options[0].text = 'long-name-'.repeat(20); }")
        for name in ("project", "split"):
            assert visit.get(f"{name}-select").evaluate("node => node.scrollWidth <= node.clientWidth")
            assert box_of(visit.get(f"{name}-select"))["width"] > 60

    def test_all_pages_are_in_sight_beside_trackio_on_a_desktop(self, visit):
        """Seen once: with a tab for episodes, the first tab was `un`."""
        visit.open(tab="episodes", project="agents", run="run-a")
        expect(visit.get("tab-episodes")).to_have_attribute("aria-current", "page")
        assert visit.page.locator(".rt-tabs").evaluate("node => node.scrollWidth <= node.clientWidth")

    def test_a_long_name_of_a_project_leaves_the_split_readable(self, visit):
        """Seen once: beside a project of 77 signs the split was called `r…`, whichever project was chosen."""
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        lengthen = "node => { node.options[%s].text = 'long-name-'.repeat(8); }"
        chosen = visit.get("project-select").evaluate("node => node.selectedIndex")
        for at in (0 if chosen else 1, chosen):
            visit.get("project-select").evaluate(lengthen % at)
            assert box_of(visit.get("split-select"))["width"] >= 84
        visit.open()
        title = visit.get("project-card").first.locator("h2")
        title.evaluate("node => { node.textContent = 'long_name_'.repeat(8); }")
        assert title.evaluate("node => node.scrollWidth <= node.clientWidth")

    def test_a_project_that_is_opened_waits_for_none_of_the_others(self, visit):
        """Seen once: the list went on to look at every row of its projects while one of them was being read."""
        held = visit.hold("project", "agents")
        visit.open()
        visit.get("project-card").filter(has_text="demo").click()
        expect(visit.get("run-verdict")).to_be_visible()
        asked = []
        visit.page.on("request", lambda request: asked.append(request.post_data or ""))
        held.let_go()
        visit.page.wait_for_timeout(500)
        assert not [each for each in asked if '"fn_name":"project"' in each]

    def test_the_answer_for_a_project_that_was_left_is_not_taken(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        expect(visit.get("turn").first).to_be_visible()
        held = visit.hold("catalog", "agents")
        visit.get("project-select").select_option("agents")
        visit.page.wait_for_timeout(300)
        visit.get("project-select").select_option("demo")
        visit.get("project-select").select_option("repetitive")
        expect(visit.get("population")).to_contain_text("rollouts kept")
        expect(visit.get("trackio-link")).to_have_attribute(
            "href", re.compile(r"traces\?project=repetitive&")
        )
        [late] = held
        late.continue_()
        visit.page.unroute("**/component_server/")
        visit.page.wait_for_timeout(500)
        visit.page.keyboard.press("3")
        expect(visit.get("explore-table").first).to_be_visible()
        expect(visit.get("project-select")).to_have_value("repetitive")
        assert visit.state["project"] == "repetitive"

    def test_every_page_says_how_many_were_kept(self, visit):
        for tab in ("rollouts", "compare", "explore", "health"):
            visit.open(tab=tab, project="demo", run="run-a", split="rollout", step=4)
            expect(visit.get("population")).to_contain_text("rollouts kept")


class TestKeyboard:
    def test_question_mark_lists_the_keys_of_this_page(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        visit.page.keyboard.press("?")
        expect(visit.get("help")).to_contain_text("Next rollout")
        expect(visit.get("help")).to_contain_text("Next extreme of the overlay")
        visit.picture("help")
        visit.page.keyboard.press("Escape")
        expect(visit.get("help")).to_have_count(0)

    def test_j_and_k_walk_the_rollouts(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        expect(visit.get("turn").first).to_be_visible()
        before = visit.state["sample"]
        visit.page.keyboard.press("j")
        visit.page.wait_for_function(f"new URLSearchParams(location.search).get('sample') !== '{before}'")
        visit.page.keyboard.press("k")
        visit.page.wait_for_function(f"new URLSearchParams(location.search).get('sample') === '{before}'")

    def test_o_walks_the_overlays(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        expect(visit.get("overlay-select")).to_be_visible()
        visit.page.keyboard.press("o")
        expect(visit.get("overlay-select")).to_have_value("loss_mask")

    def test_keys_typed_into_a_field_do_nothing_else(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        expect(visit.get("turn").first).to_be_visible()
        visit.page.keyboard.press("/")
        visit.page.keyboard.type("jo?")
        expect(visit.get("search-input").first).to_have_value("jo?")
        expect(visit.get("help")).to_have_count(0)


class TestTheme:
    def test_follows_the_system_and_can_be_switched(self, chromium, served):
        visit = Visit(chromium, served.address, color_scheme="dark")
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        background = "getComputedStyle(document.querySelector('.rt-active')).backgroundColor"
        dark = visit.page.evaluate(background)
        visit.picture("rollouts-dark")
        visit.page.keyboard.press("t")
        light = visit.page.evaluate(background)
        assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(",")))
        visit.close()
