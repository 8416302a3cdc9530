"""What an install means for a node, from what it said; and the lines for slurm.conf."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from fleetctl.ops.far_side import MARK
from fleetctl.ops.install_plan import Outcome, Wanted, bootstrap, changes, compare, read_answer, result_of
from fleetctl.ops.slurm_lines import conf_text, slurm_lines

PYTHON = "/usr/bin/python3"
WANTED = Wanted("d" * 64, "d" * 16, {"a.py": "1", "site.json": "2"}, {"site.json": '{"a": 1}\n', "python": "p\n"})


SAME = '{"outcome": "same", "before": "d", "after": "d"}'
GARBLED = (
    "[]",
    "",
    '{"outcome": "sa',
    '{"outcome": "same"}',
    '{"outcome": "great", "before": "d", "after": "d"}',
    '{"outcome": "failed", "before": "d", "after": "d"}',
    '{"outcome": ["same"], "before": "d", "after": "d"}',
    '{"outcome": "same", "before": 3, "after": "d"}',
    '{"error": "no"}',
    '{"error": null, "remedy": ""}',
    '{"current": null, "digest": null, "files": [], "texts": {}}',
    '{"current": null, "digest": null, "files": {"a": 1}, "texts": {}}',
    "[" * 100_000,
)


def looked(**changed: Any) -> dict[str, Any]:
    return {"current": "old", "previous": None, "digest": "x", "files": {}, "texts": {}} | changed


def test_no_shell_finds_anything_to_do_in_the_command() -> None:
    code = bootstrap(PYTHON, 4711)[-1]
    assert not set(code) & set("'!`$\n~#*?")
    assert shlex.split(shlex.join(bootstrap(PYTHON, 4711))) == list(bootstrap(PYTHON, 4711))
    compile(code, "bootstrap", "exec")


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (0, "motd\n\nfleetctl-python 3.9\n\n" + MARK + SAME + "\n", None),
        (0, MARK + SAME + "\nbye\n", None),
        (93, "\nfleetctl-python 3.6\n", f"{PYTHON} is Python 3.6; the node checks need 3.9"),
        (2, "\nfleetctl-python 2.7\n", "is Python 2.7"),
        (127, "sh: 1: /usr/bin/python3: not found\n", f"there is no {PYTHON} (status 127)"),
        (126, "permission denied\n", f"there is no {PYTHON} (status 126)"),
        (1, "\nfleetctl-python 3.10\nTraceback\nKeyError: 'x'\n", "ended with status 1 and said: KeyError: 'x'"),
        (0, "", "ended with status 0 and said: nothing"),
        (1, "\nfleetctl-python 3.x\nTraceback\n", "ended with status 1 and said: Traceback"),
        (1, "\nfleetctl-python \u0663.6\n", "ended with status 1"),
        *(pytest.param(0, MARK + text, "it answered nonsense", id=text[:60]) for text in GARBLED),
    ],
)
def test_every_answer_is_understood(status: int, text: str, words: str | None) -> None:
    answer = read_answer(status, text, MARK, PYTHON)
    if words is None:
        assert answer["outcome"] == "same"
    else:
        assert words in answer["error"]
        assert "remedy" in answer


def test_an_old_python_is_told_a_way_out() -> None:
    assert "--python" in read_answer(93, "fleetctl-python 3.8\n", MARK, PYTHON)["remedy"]


def test_results_name_the_host_where_it_failed() -> None:
    assert result_of("n1", {"error": "no", "remedy": ""})[:2] == ("n1", Outcome.FAILED)
    assert result_of("n1", {"error": "no", "remedy": "do"}).words == "n1: no"
    assert result_of("n1", {"error": "no", "remedy": ""}).remedy is None
    done = result_of("n1", {"outcome": "installed", "before": None, "after": "d"})
    assert done == ("n1", Outcome.INSTALLED, None, "d", (), "", None)


def test_changes_are_marked_and_sorted() -> None:
    old, new = {"b": "1", "c": "1", "d": "1"}, {"a": "1", "b": "2", "d": "1"}
    assert changes(old, new) == [("+", "a"), ("~", "b"), ("-", "c")]
    assert changes(new, new) == []


def test_the_same_digest_differs_in_nothing() -> None:
    assert compare("n1", looked(digest=WANTED.digest), WANTED).outcome is Outcome.SAME


def test_a_difference_shows_names_and_what_people_wrote() -> None:
    answer = looked(files={"site.json": "1", "gone.py": "1"}, texts={"site.json": '{"a": 2}\n', "profile.json": "{}\n"})
    found = compare("n1", answer, WANTED)
    assert (found.outcome, found.before, found.after) == (Outcome.DIFFERS, "old", "d" * 16)
    assert found.diff[:3] == ("+ a.py", "- gone.py", "~ site.json")
    assert {'-{"a": 2}', '+{"a": 1}', "-{}", "+p", "--- n1:site.json", "+++ new:site.json"} <= set(found.diff)
    assert not found.words


def test_the_lines_for_slurm_conf_are_of_this_prefix() -> None:
    lines = {line.key: line.value for line in slurm_lines("/opt/x")}
    assert lines["Prolog"] == "/opt/x/current/prolog/fleetctl-prolog.sh"
    assert lines["Epilog"] == "/opt/x/current/epilog/fleetctl-epilog.sh"
    assert lines["HealthCheckProgram"] == "/opt/x/current/prolog/fleetctl-periodic.sh"
    assert lines["PrologFlags"] == "Alloc"
    assert lines["HealthCheckNodeState"] == "ANY,CYCLE"
    assert lines["SchedulerParameters"] == "nohold_on_prolog_fail"
    assert int(lines["PrologEpilogTimeout"]) > 8 * 2
    assert int(lines["HealthCheckInterval"]) > 60
    for line in conf_text("/opt/x").splitlines():
        assert line.startswith("# ") or "=" in line


def test_the_lines_warn_of_what_they_would_replace() -> None:
    text = conf_text("/opt/x")
    assert text.startswith("# Each replaces what slurm.conf says by that name so far")
    why = {line.key: line.why for line in slurm_lines("/opt/x")}
    assert "add" in why["PrologFlags"]
    assert "add" in why["SchedulerParameters"]
    assert all("chain" in why[key] for key in ("Prolog", "Epilog", "HealthCheckProgram"))
