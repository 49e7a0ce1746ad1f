"""A process that does one thing and ends: what it printed is whole, what waits for its end is run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

IMPORT = "from rollout_traces.model.lean_process import ending_soon, leave_pandas_out\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    code = "from rollout_traces.model.lean_process import ending_soon, leave_pandas_out\n" + textwrap.dedent(
        code
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


class TestEndingSoon:
    @pytest.mark.parametrize(("code", "expected"), [("None", 0), ("0", 0), ("3", 3)])
    def test_everything_printed_arrives_and_the_exit_code_is_kept(self, code, expected):
        done = run(f"""
            import sys
            with ending_soon():
                print("x" * 200_000)
                print("why", file=sys.stderr)
                raise SystemExit({code})
        """)
        assert (done.returncode, len(done.stdout), done.stderr) == (expected, 200_001, "why\n")

    def test_what_is_registered_with_atexit_is_run(self):
        done = run("""
            import atexit
            atexit.register(lambda: print("closed"))
            with ending_soon():
                raise SystemExit(0)
        """)
        assert done.stdout == "closed\n"

    def test_a_message_or_an_exception_ends_it_as_ever(self):
        done = run("with ending_soon(): raise SystemExit('no such run')")
        assert (done.returncode, done.stderr) == (1, "no such run\n")
        assert run("with ending_soon(): 1 / 0").stderr.endswith("ZeroDivisionError: division by zero\n")

    def test_a_reader_that_left_is_no_error(self):
        process = subprocess.Popen(
            [sys.executable, "-c", f"{IMPORT}with ending_soon():\n print('x')\n raise SystemExit(0)"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        )
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_pandas_left_out_is_as_if_not_installed():
    done = run("leave_pandas_out()\nimport pandas")
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: pandas is left out")
