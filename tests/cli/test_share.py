"""One file to share: of what, and what is refused."""

from __future__ import annotations

import pytest

from tests.store.projects import PROJECT, RUN


@pytest.fixture
def share(command, tmp_path, monkeypatch):
    """Runs the command, and gives what it says and the file's text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str):
        out = tmp_path / "page.html"
        done = command("share", *arguments, "-p", PROJECT, "-o", str(out))
        return done, out.read_text("utf-8") if out.exists() else ""

    return run


def test_rollouts_are_written_with_the_size_of_the_file(share, tmp_path):
    done, page = share("b0-0", "b0-1")
    assert done.exit_code == 0, done.output
    assert done.output.strip().endswith(f": {tmp_path / 'page.html'}") and "kB" in done.output
    assert "boxed" in page and "I am sorry" in page


def test_what_a_pattern_matches_is_hidden(share):
    _, page = share("b0-0", "--redact-pattern", "cannot be w[a-z]+", "--redact-pattern", "nothing")
    assert "boxed{42}" in page and "cannot be wrong" not in page


def test_a_comparison_a_group_and_a_report_are_files_too(share):
    for asked in (("--compare", "b0-0", "b0-1"), (RUN, "--group", "1:0"), (RUN, "--explain", "--step", "1")):
        done, page = share(*asked)
        assert done.exit_code == 0 and page, (asked, done.output)


@pytest.mark.parametrize(
    "asked",
    [(), ("b0-0", "--compare", "b0-0", "b0-1"), (RUN, "--explain", "--group", "1:0")],
)
def test_anything_but_one_of_them_is_refused(share, asked):
    done, page = share(*asked)
    assert done.exit_code == 1 and "one of them" in str(done.exception) and not page


def test_a_report_is_of_one_run(share):
    done, _ = share(RUN, "other", "--explain")
    assert done.exit_code == 1 and f"expected one run; seen {RUN}, other." in str(done.exception)


def test_a_group_is_named_by_its_step_and_number(share):
    done, _ = share(RUN, "--group", "1")
    assert done.exit_code == 1 and "STEP:GROUP" in str(done.exception)
