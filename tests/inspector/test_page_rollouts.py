"""The Rollouts page, driven as a person does."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import box_of

pytestmark = pytest.mark.browser


class TestReadingAStep:
    def test_opens_the_latest_step_with_groups_samples_and_a_conversation(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("group-card")).to_have_count(4)
        expect(visit.get("sample-card")).to_have_count(16)
        expect(visit.get("turn").first).to_be_visible()
        expect(visit.get("step-input")).to_have_value("6")
        expect(visit.get("population")).to_contain_text("16 of 32 rollouts kept")
        expect(visit.get("population")).to_contain_text("chosen: ")
        visit.picture("rollouts")

    def test_a_tied_group_is_marked_and_shows_all_its_rewards(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        tied = visit.page.locator("[data-testid='group-card'][data-group='0']")
        expect(tied).to_contain_text("tied")
        expect(tied.locator(".rt-dots i")).to_have_count(8)

    def test_no_chip_of_a_group_is_cut(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        chips = visit.page.locator("[data-testid='group-card'] header .rt-chip")
        expect(chips.first).to_be_visible()
        cut = chips.evaluate_all(
            "all => all.filter(n => n.scrollWidth > n.clientWidth).map(n => n.textContent)"
        )
        assert cut == []

    def test_choosing_a_sample_opens_it_and_names_it_in_the_address(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        card = visit.page.locator("[data-group='2'] [data-testid='sample-card']").last
        card.click()
        expect(card).to_have_attribute("aria-current", "")
        expect(visit.get("rollout-header")).to_contain_text("group 2")
        assert visit.state["group"] == "2"
        assert "sample" in visit.state

    def test_header_names_reward_components_versions_selection_and_truth(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        header = visit.get("rollout-header")
        for words in (
            "reward",
            "advantage",
            "correct",
            "format",
            "staleness",
            "Kept as",
            "out of 32",
            "expected",
            "generation",
        ):
            expect(header).to_contain_text(words)

    def test_turns_carry_roles_counts_and_paired_tools(self, visit):
        visit.open(project="demo", run="run-a", where="n_tool_calls > 0 and n_tool_errors = 0")
        expect(visit.page.locator("[data-role='assistant']").first).to_contain_text("sampled")
        expect(visit.get("tool-call").first).to_contain_text("expression")
        expect(visit.page.locator("[data-role='tool']").first).to_contain_text("answers turn 2")


class TestMovingBetweenSteps:
    def test_buttons_typing_and_keys_change_the_step(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("sample-card").first).to_be_visible()
        visit.get("step-previous").click()
        expect(visit.get("step-input")).to_have_value("5")
        visit.page.keyboard.press("[")
        expect(visit.get("step-input")).to_have_value("4")
        visit.get("step-input").fill("2")
        visit.get("step-input").press("Enter")
        expect(visit.get("population")).to_contain_text("at step 2")
        visit.page.keyboard.press("}")
        expect(visit.get("step-input")).to_have_value("6")

    def test_a_click_on_a_chart_goes_to_its_step(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        chart = visit.page.locator("[data-testid='charts'] .rt-chart-svg").first
        expect(chart).to_be_visible()
        visit.wait_until_quiet()
        height = chart.evaluate("node => node.getBoundingClientRect().height")
        chart.click(position={"x": 44, "y": height / 2})
        expect(visit.get("step-input")).to_have_value("1")
        expect(visit.page.locator("[data-testid='charts'] .rt-now").first).to_be_attached()

    def test_another_metric_is_chosen_and_drawn(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        visit.get("charts-choose").click()
        search = visit.page.get_by_placeholder("search").locator("visible=true").last
        expect(search).to_be_focused()
        search.fill("tokens/prompt/mean")
        box = visit.page.locator(".rt-chooser label", has_text="tokens/prompt/mean").first.locator("input")
        assert box.evaluate("node => getComputedStyle(node).appearance") == "auto"
        name = visit.page.locator(".rt-chooser label").first.inner_text()
        box.check()
        expect(visit.page.locator(f"[data-metric='{name}'] .rt-line")).to_be_visible()
        assert name in visit.state["charts"]
        box.uncheck()
        expect(visit.page.locator(f"[data-metric='{name}']")).to_have_count(0)

    def test_smoothing_keeps_the_slider_that_is_moved(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("chart").first).to_be_visible()
        slider = visit.get("smoothing")
        slider.focus()
        for _ in range(4):
            visit.page.keyboard.press("ArrowRight")
        expect(visit.page.locator("[data-testid='charts'] .rt-line-raw").first).to_be_attached()
        expect(slider).to_be_focused()
        assert float(visit.state["smooth"]) == pytest.approx(0.2)

    def test_the_dot_lies_on_the_value_that_is_told_not_on_the_smoothed_line(self, visit):
        """Seen once: the label said 0.469, and the dot stood at 0.7."""
        visit.open(tab="rollouts", project="demo", run="run-a", step=4, smooth=0.9)
        chart = visit.get("chart").first.locator("svg.rt-chart-svg").first
        expect(chart.locator(".rt-line-raw")).to_be_attached()
        visit.wait_until_quiet()
        box = box_of(chart)
        visit.page.mouse.move(box["x"] + box["width"] - 9, box["y"] + 30)
        dot = chart.locator("circle[visibility='visible']").first
        raw = chart.locator(".rt-line-raw").get_attribute("d").split("L")[-1].split(" ")
        place = [float(dot.get_attribute(name)) for name in ("cx", "cy")]
        assert place == pytest.approx([float(each) for each in raw], abs=0.06)

    def test_a_slider_that_is_moved_before_the_curves_are_there_keeps_the_focus(self, visit):
        held = visit.hold("metrics")
        visit.open(tab="rollouts", project="demo", run="run-a")
        slider = visit.get("smoothing")
        slider.focus()
        visit.page.keyboard.press("ArrowRight")
        held.pop().continue_()
        expect(visit.get("chart").first).to_be_visible()
        expect(slider).to_be_focused()
        assert float(visit.state["smooth"]) == pytest.approx(0.05)

    def test_the_other_split_has_its_own_steps(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        visit.get("split-select").select_option("eval-rollout")
        expect(visit.get("population")).to_contain_text("of 8 rollouts kept")
        assert visit.state["split"] == "eval-rollout"

    def test_back_and_forward_retrace_the_steps(self, visit):
        visit.open(project="demo", run="run-a", step=3)
        expect(visit.get("sample-card").first).to_be_visible()
        visit.page.keyboard.press("]")
        expect(visit.get("population")).to_contain_text("at step 4")
        visit.page.go_back()
        expect(visit.get("population")).to_contain_text("at step 3")
        visit.page.go_forward()
        expect(visit.get("population")).to_contain_text("at step 4")


class TestDeepLinks:
    def test_step_group_sample_and_overlay_open_as_named(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        visit.page.locator("[data-group='1'] [data-testid='sample-card']").first.click()
        expect(visit.get("rollout-header")).to_contain_text("group 1")
        sample = visit.state["sample"]
        visit.open(
            project="demo", run="run-a", split="rollout", step=4, group=1, sample=sample, overlay="loss_mask"
        )
        expect(visit.get("rollout-header")).to_contain_text(f"Step 4 · group 1 · sample {sample}")
        expect(visit.get("overlay-select")).to_have_value("loss_mask")
        expect(visit.page.locator("[data-testid='token'].m1").first).to_be_visible()

    def test_a_rollout_that_is_not_there_says_so(self, visit):
        visit.open(project="demo", run="run-a", split="rollout", step=4, group=1, sample=77)
        expect(visit.page.locator(".rt-notice:visible")).to_contain_text("sample 77 of rollout is not there")

    def test_a_project_that_does_not_exist_leads_to_the_list(self, visit):
        visit.open(project="nowhere")
        expect(visit.get("project-card").first).to_be_visible()

    def test_a_split_that_does_not_exist_is_named(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a", split="zzz")
        expect(visit.get("run-note")).to_have_text("No split zzz in this run: rollout is shown.")
        visit.get("split-select").select_option("eval-rollout")
        expect(visit.get("run-note")).to_be_hidden()


class TestCharts:
    def test_no_button_covers_a_point(self, visit):
        """Seen once: pointed at, a chart lost its newest points behind *log* and *with …*."""
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        chart = visit.get("chart").first
        chart.hover()
        plot = box_of(chart.locator(".rt-chart-svg"))
        for each in chart.locator("figcaption :is(button, select)").all():
            assert box_of(each)["y"] + box_of(each)["height"] <= plot["y"] + 8


class TestFilterSearchAndSort:
    def test_a_filter_narrows_the_step(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        visit.get("filter-input").fill("flags has 'tied_group'")
        visit.get("filter-input").press("Enter")
        expect(visit.get("group-card")).to_have_count(1)
        assert visit.state["where"] == "flags has 'tied_group'"

    def test_a_bad_token_is_pointed_at(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        visit.get("filter-input").fill("reward < < 1")
        visit.get("filter-input").press("Enter")
        expect(visit.get("filter-error")).to_be_visible()
        expect(visit.get("filter-error-token")).to_be_visible()
        visit.picture("filter-error")

    def test_a_filter_that_is_put_right_takes_its_error_along(self, visit):
        """Seen once: the error stayed beside the answer, and the list and count of the filter before beside the error."""
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        asked = visit.get("filter-input")
        for _ in range(2):
            asked.fill("reward > 0.1")
            asked.press("Enter")
            expect(visit.get("match-count")).to_contain_text("match")
            expect(visit.get("filter-error")).to_have_count(0)
            expect(visit.get("sample-card").first).to_be_visible()
            asked.fill("flags has 'nosuch'")
            asked.press("Enter")
            expect(visit.get("filter-error")).to_contain_text("nosuch")
            expect(visit.page.locator("[data-testid='match-count']").first).to_be_empty()
            expect(visit.get("sample-card")).to_have_count(0)

    def test_what_a_filter_leaves_is_opened_where_the_open_rollout_is_not_in_it(self, visit):
        """Seen once: the middle kept a rollout of reward 1 beside a list of rewards below 0.3."""
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        expect(visit.page.locator(".rt-sample.rt-selected:visible")).to_have_count(1)
        first = visit.state["sample"]
        visit.get("filter-input").fill(f"sample != {first}")
        visit.get("filter-input").press("Enter")
        expect(visit.get("match-count")).to_contain_text("match")
        expect(visit.page.locator(".rt-sample.rt-selected:visible")).to_have_count(1)
        assert visit.state["sample"] != first

    @pytest.mark.parametrize(("scope", "where"), [("step", "of this step"), ("all", "of all steps")])
    def test_one_that_leaves_nothing_says_of_how_many(self, visit, scope, where):
        visit.open(tab="rollouts", project="demo", run="run-a", step=4, scope=scope, where="reward > 99")
        kept = visit.get("population").locator("b").inner_text().split()[0]
        expect(visit.page.locator(".rt-empty:visible")).to_contain_text(f"{kept} rollouts {where} are kept")

    def test_a_bad_filter_in_the_address_is_said_where_one_reads(self, visit):
        visit.open(project="demo", run="run-a", where="reward < < 1")
        expect(visit.page.locator(".rt-middle .rt-notice")).to_contain_text("cannot be read")

    def test_search_over_all_steps_lists_steps(self, visit):
        visit.open(project="demo", run="run-a", scope="all", text="division by zero")
        expect(visit.get("sample-card").first).to_contain_text("step")
        expect(visit.get("population")).to_contain_text("over all steps")

    def test_a_hit_shows_the_place_that_was_found(self, visit):
        """Seen once: search hits showed no text."""
        visit.open(project="demo", run="run-a", scope="all", text="division by zero")
        expect(visit.get("snippet").first).to_contain_text("division by zero")
        visit.open(project="demo", run="run-a", scope="all", text="marbles")
        expect(visit.get("snippet").first).to_be_visible()
        lower = visit.get("snippet").evaluate_all(
            """all => all.filter(snippet => { const hit = snippet.querySelector("mark")?.getBoundingClientRect();
            const box = snippet.getBoundingClientRect(); return !hit || hit.top > box.top + 12; }).length"""
        )
        assert lower == 0
        visit.open(project="demo", run="run-a", step=4, text="division by zero")
        expect(visit.get("snippet").first).to_contain_text("division by zero")
        visit.open(project="demo", run="run-a", step=4)
        expect(visit.get("sample-card").first).to_be_visible()
        expect(visit.get("snippet")).to_have_count(0)

    def test_a_search_opens_its_first_hit_and_says_how_many_there_are(self, visit):
        """Seen once: the list showed hits, the middle kept a rollout without one, and `n` did nothing."""
        text = "division by zero"
        ids = "all => all.map(card => card.dataset.id)"
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        expect(visit.get("turn").first).to_be_visible()
        listed = visit.get("sample-card").evaluate_all(ids)
        visit.open(tab="rollouts", project="demo", run="run-a", step=4, text=text)
        expect(visit.get("snippet").first).to_be_visible()
        hits = visit.get("sample-card").evaluate_all(ids)
        other = next(each for each in listed if each not in hits)
        place = {"tab": "rollouts", "project": "demo", "run": "run-a", "step": 4, "id": other}
        first = visit.page.locator(f".rt-sample.rt-selected[data-id='{hits[0]}']:visible")
        visit.open(**place, text=text)
        expect(visit.get("match-count")).to_have_text(f"{len(hits)} match")
        expect(visit.get("turn").first).to_be_visible()
        expect(first).to_have_count(0)  # the address names another one
        visit.page.keyboard.press("n")
        expect(first).to_be_visible()
        visit.open(**place)
        expect(visit.get("turn").first).to_be_visible()
        visit.page.keyboard.press("/")
        visit.page.keyboard.type(text)
        expect(first).to_be_visible()
        expect(visit.get("search-input").first).to_be_focused()

    def test_sorting_by_reward_puts_the_lowest_first(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a", sort="reward")
        visit.get("sample-card").first.wait_for()
        expect(visit.get("group-card")).to_have_count(0)
        shown = visit.page.locator("[data-testid='sample-card'] .rt-sample-reward").all_inner_texts()
        assert len(shown) > 1 and [float(text) for text in shown] == sorted(float(text) for text in shown)

    def test_an_example_of_a_filter_is_taken_from_the_keyboard(self, visit):
        """Seen once: the examples could be reached by Tab, and Enter did nothing."""
        visit.open(tab="rollouts", project="demo", run="run-a", step=4)
        visit.get("sample-card").first.wait_for()
        visit.page.keyboard.press("f")
        example = visit.page.locator(".rt-filter-below button:visible").first
        words = example.inner_text()
        example.focus()
        visit.page.keyboard.press("Enter")
        expect(visit.get("filter-input").first).to_have_value(words)
        assert visit.state["where"] == words

    def test_nothing_found_says_what_to_do(self, visit):
        visit.open(project="demo", run="run-a", where="reward > 5")
        said = visit.page.locator(".rt-middle .rt-notice:visible")
        expect(said).to_contain_text("Nothing matches")
        expect(said).to_contain_text("or search all steps")

    def test_nothing_found_in_all_steps_does_not_advise_to_search_all_steps(self, visit):
        visit.open(project="demo", run="run-a", where="reward > 5", scope="all")
        expect(visit.page.locator(".rt-middle .rt-notice:visible")).to_contain_text("Change the filter.")


class TestTokens:
    def test_a_hovered_token_shows_id_text_position_and_values(self, visit):
        visit.open(project="demo", run="run-a", step=4, overlay="logprob")
        token = visit.page.locator("[data-turn='2'] [data-testid='token']").nth(6)
        visit.wait_until_quiet()
        token.hover()
        card = visit.get("token-card")
        for words in (
            "id",
            "position",
            "rollout logprob",
            "prox − rollout logprob",
            "in the loss",
            "version",
        ):
            expect(card).to_contain_text(words)
        visit.picture("tokens")
        turn = box_of(visit.page.locator("[data-turn='2']:visible"))
        assert box_of(card)["x"] >= turn["x"] + turn["width"], "beside the text, where there is room"

    def test_the_card_of_a_token_never_covers_it_and_goes_with_its_page(self, visit):
        visit.open(project="demo", run="run-a", step=4, overlay="logprob")
        token = visit.page.locator("[data-turn='2'] [data-testid='token']").nth(6)
        visit.wait_until_quiet()
        for height in (900, 620):
            visit.page.set_viewport_size({"width": 1280, "height": height})
            token.evaluate("node => node.scrollIntoView({block: 'center'})")
            visit.page.mouse.move(0, 0)
            token.hover()
            card, box = box_of(visit.get("token-card")), box_of(token)
            apart = (
                card["y"] >= box["y"] + box["height"],
                card["y"] + card["height"] <= box["y"],
                card["x"] >= box["x"] + box["width"],
                card["x"] + card["width"] <= box["x"],
            )
            assert any(apart), (height, card, box)
        token.click()
        expect(visit.get("token-card")).to_be_visible()
        visit.page.keyboard.press("5")
        expect(visit.page.locator(".rt-active.rt-view .rt-workbench")).to_be_visible()
        expect(visit.get("token-card")).to_be_hidden()

    def test_every_overlay_the_track_holds_is_offered_and_drawn(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        expect(visit.get("overlay-select")).to_be_visible()
        offered = visit.page.locator("[data-testid='overlay-select'] option").evaluate_all(
            "all => all.map(o => o.value).filter(Boolean)"
        )
        assert {
            "loss_mask",
            "response_mask",
            "version",
            "staleness",
            "logprob",
            "mismatch",
            "ppo_ratio",
            "ref_kl",
            "entropy",
            "value",
        } <= set(offered)
        for overlay in offered:
            visit.get("overlay-select").select_option(overlay)
            expect(visit.get("legend")).to_be_visible()
            expect(visit.page.locator("[data-testid='token'][class]").first).to_be_visible()

    def test_token_texts_joined_are_the_raw_rollout(self, visit):
        visit.open(project="demo", run="run-a", step=4, mode="tokens")
        expect(visit.get("token").first).to_be_visible()
        visit.page.locator("button:text('expand all')").click()
        text = visit.page.evaluate(
            "[...document.querySelectorAll('.rt-active .rt-tokens')].map(n => n.textContent).join('')"
        )
        assert text.startswith("<|im_start|>system\n")
        assert "<|im_start|>user\n" in text
        assert text.rstrip().endswith(("<|im_end|>", "</tool_response>")) or "<|im_start|>assistant" in text

    def test_jumping_goes_to_an_edge_of_the_mask(self, visit):
        visit.open(project="demo", run="run-a", step=4, overlay="loss_mask")
        expect(visit.get("token").first).to_be_visible()
        visit.page.keyboard.press("e")
        expect(visit.page.locator(".rt-at")).to_be_visible()
        expect(visit.get("token-card")).to_be_visible()
        assert visit.state["token"] == visit.page.locator(".rt-at").get_attribute("data-i")

    def test_a_flag_with_a_range_leads_to_its_tokens(self, visit):
        visit.open(project="demo", run="run-a", where="flags has 'mask_leak'", scope="all")
        flag = visit.page.locator("[data-testid='flag'][data-flag='mask_leak']:visible").first
        expect(flag).to_contain_text("loss")
        flag.click()
        expect(visit.page.locator("[data-testid='token'].f3").first).to_be_visible()

    def test_whitespace_can_be_shown(self, visit):
        visit.open(project="demo", run="run-a", step=4, mode="tokens")
        visit.get("whitespace").click()
        expect(visit.page.locator(".rt-tokens").first).to_contain_text("↵")
        assert visit.state["ws"] == "1"


class TestRendering:
    def test_formulas_and_markdown_can_be_switched_off(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        expect(visit.page.locator(".rt-markdown:visible").first).to_be_visible()
        visit.get("rendered").click()
        expect(visit.page.locator(".rt-plain:visible").first).to_be_visible()
        assert visit.state["plain"] == "1"

    def test_copying_gives_the_content(self, visit):
        visit.open(project="demo", run="run-a", step=4)
        visit.page.locator("[data-role='user'] button:text('copy')").first.click()
        expect(visit.page.locator("button:text('copied')")).to_be_visible()
        assert "How many now?" in visit.page.evaluate("navigator.clipboard.readText()")

    @pytest.mark.parametrize("width,height", [(1280, 800), (2560, 1400)])
    def test_nothing_overflows_sideways(self, chromium, served, width, height):
        from tests.inspector.conftest import Visit

        visit = Visit(chromium, served.address, viewport={"width": width, "height": height})
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        wide = visit.page.evaluate("""[...document.querySelectorAll('.rt-active .rt-left, .rt-active .rt-middle, .rt-active .rt-right')]
          .filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.className)""")
        assert json.dumps(wide) == "[]"
        visit.picture(f"rollouts-{width}")
        visit.close()
