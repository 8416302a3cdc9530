"""The documentation is that of this code. `./dev test tests/unit/test_docs.py --update-golden` mends the tables."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

import fleetctl
from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.model import Level, Validity
from fleetctl.cli import ckpt_place
from fleetctl.cli.app import _INTERNAL_EXIT_CODE, cli, run
from fleetctl.cli.runs import exit_code_of
from fleetctl.errors import INTERRUPTED_EXIT_CODE, exit_codes
from fleetctl.health.checks import CHECKS as NODE_CHECKS
from fleetctl.health.model import Phase
from fleetctl.launch.environment import checkpoint_environment, rendezvous, run_environment
from fleetctl.launch.interval import keys_of
from fleetctl.launch.model import CheckpointOrder, JobIdentity
from fleetctl.launch.resume import Resume
from fleetctl.ops.advice import Advice
from fleetctl.ops.doctor import CHECKS
from fleetctl.recovery.metrics import METRICS
from fleetctl.recovery.model import Action, CauseClass, Deed, Done, Incident, Interruption, Outcome
from fleetctl.recovery.model import Advice as CauseAdvice
from fleetctl.recovery.notify import Notice
from fleetctl.recovery.passes import Passed, as_json, incident_json, interruption_json
from fleetctl.reliability.estimate import Observed, make_plan
from fleetctl.render.steps import _RANKS
from fleetctl.rundir.history import add_up
from fleetctl.rundir.model import Claim, EventKind, RunKind, RunRecord
from fleetctl.rundir.pulse import Pulse
from fleetctl.rundir.store import RunDir, Store
from fleetctl.rundir.view import RunState, RunView, view
from fleetctl.rundir.words import Word
from fleetctl.slurm.profile import DEFAULT_PROFILE, ClusterProfile, PartitionProfile, profile_path, save_profile
from fleetctl.spec.load import load_spec
from fleetctl.submission.plan import _SBATCH_DEFAULTS
from tests.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
PAGES |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CHANGELOG.md")}
JSON, RUNDIR, GUIDE = PAGES["docs/json.md"], PAGES["docs/rundir.md"], PAGES["docs/guide.md"]
MANUAL = "\n".join(
    PAGES[f"docs/{name}.md"]
    for name in (
        *("guide", "checkpoints", "sandbox", "operators", "doctor", "nodes", "accounting", "database"),
        *("recovery", "daemon"),
    )
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RECORD = RunRecord("r-1", "r", "me", NOW, RunKind.PLAIN, "d", "/s/train.yaml", "/s", 1, 1, "", "0")


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group under `command`, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, (*path, name))


COMMANDS = dict(walk(cli, ("fleetctl",)))
NAMED = [pytest.param(path, id=" ".join(path)) for path in COMMANDS]


def fenced(language: str) -> list[Any]:
    """The fenced blocks of one language, on all pages."""
    blocks = [
        (page, block) for page, text in PAGES.items() for block in re.findall(rf"```{language}\n(.*?)```", text, re.S)
    ]
    return [pytest.param(block, id=f"{page}-{number}") for number, (page, block) in enumerate(blocks)]


def section(page: str, title: str) -> str:
    """What stands under a heading, up to the next one."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.S | re.M)
    assert match, f"no heading {title!r}"
    return match[1]


def first_cells(text: str) -> list[str]:
    """The `names` in the first column of the tables in `text`."""
    return [name for cell in re.findall(r"^\| (`[^|]*`) \|", text, re.M) for name in re.findall(r"`([^`]+)`", cell)]


# Commands


@pytest.mark.parametrize("path", NAMED)
def test_every_command_is_described(path: tuple[str, ...]) -> None:
    assert re.search(rf"{' '.join(path)}\b", MANUAL)


@pytest.mark.parametrize("path", NAMED)
def test_every_option_is_described(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert option == "--version" or re.search(rf"(?<![\w-]){option}(?![\w-])", MANUAL), option


@pytest.mark.parametrize("path", NAMED)
def test_every_help_has_an_example(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    said = command.get_help(click.Context(command, info_name=" ".join(path)))
    assert any("fleetctl " in line for line in said.splitlines() if not line.startswith("Usage:"))


@pytest.mark.parametrize("block", fenced("sh"))
def test_every_command_line_is_understood(block: str) -> None:
    for line in block.splitlines():
        for call in re.findall(r"fleetctl ([^|&>)]*)", re.sub(r"\s# .*", "", line)):
            command, words = cli, shlex.split(call.replace('"', "") if call.count('"') % 2 else call)
            inner: click.Command = command
            while isinstance(inner, click.Group):
                own = [words.pop(0), words.pop(0)] if words[0] == "--runs" else []
                assert not own or inner is cli
                found = inner.get_command(click.Context(inner), words.pop(0))
                assert found is not None, line
                inner = found
            inner.make_context("x", words)  # UsageError when it takes no such words


def test_the_readme_has_two_command_lines() -> None:
    readme = PAGES["README.md"]
    assert "```" not in readme
    assert re.findall(r"^ {4}(\S.*)$", readme, re.M) == ["./dev demo", "./dev test"]


# JSON


def test_the_keys_of_a_run() -> None:
    assert first_cells(section(JSON, "A run")) == list(RunView.__struct_fields__)


def test_the_keys_of_a_cluster() -> None:
    assert first_cells(section(JSON, "`fleetctl cluster probe`")) == list(ClusterProfile.__struct_fields__)
    assert first_cells(section(JSON, "A partition")) == list(PartitionProfile.__struct_fields__)


def test_the_keys_of_the_doctor() -> None:
    assert first_cells(section(JSON, "Advice")) == list(Advice.__struct_fields__)
    checks = first_cells(PAGES["docs/doctor.md"])
    assert set(checks) >= {*CHECKS}
    said = "".join(path.read_text() for path in (ROOT / "fleetctl" / "ops").glob("doctor_*.py"))
    assert set(checks) == set(re.findall(r'Advice\("(\w+)"', said))


@pytest.mark.parametrize("name", ["submit", "sandbox"])
def test_the_keys_of_a_command_that_needs_a_cluster(name: str) -> None:
    tree = ast.parse((ROOT / "fleetctl" / "cli" / f"{name}.py").read_text())
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = {key.value for node in dicts for key in node.keys if isinstance(key, ast.Constant)}
    assert set(first_cells(section(JSON, f"`fleetctl {name}`"))) == keys


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run root with one run that was never submitted, so that nobody asks Slurm about it."""
    monkeypatch.setenv("FLEETCTL_RUNS", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    store = Store(tmp_path)
    store.ensure()
    assert store.reserve(RECORD.run_id)
    log = store.fill(RECORD, "name: r\ncommand: c\n", {}).event_log("job-1")
    log.append(NOW, EventKind.ATTEMPT_STARTED, submission=1, attempt="1.0", job_id="1", host="n1")
    profile = msgspec.structs.replace(DEFAULT_PROFILE, taken_at=datetime.now(UTC))
    save_profile(profile_path(tmp_path, {}), profile)
    return tmp_path


def printed_keys(*words: str) -> list[str]:
    """All keys of what a command prints, in their order, those of inner objects after those around them."""
    said = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert said.stdout, said.output
    todo, keys = [json.loads(said.stdout)], []
    while todo:
        value = todo.pop(0)
        keys += list(value) if isinstance(value, dict) else []
        todo += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return keys


@pytest.mark.parametrize(
    "words",
    [("why", "r-1"), ("cancel", "r-1"), ("resolve", "r-1"), ("logs", "r-1"), ("completion", "zsh")],
    ids=lambda words: words[0],
)
def test_the_keys_that_a_command_prints(words: tuple[str, ...], runs: Path) -> None:
    assert first_cells(section(JSON, f"`fleetctl {words[0]}`")) == printed_keys(*words)


def test_the_keys_that_wait_prints(runs: Path) -> None:
    assert printed_keys("wait", "r-1") == first_cells(section(JSON, "A run"))


def test_the_keys_that_show_prints(runs: Path) -> None:
    own = [
        name
        for title in ("A run", "`fleetctl show`", "An attempt", "A moment")
        for name in first_cells(section(JSON, title))
    ]
    assert printed_keys("show", "r-1") == own


def test_the_keys_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ckpt_place, "Apart", Here)  # no process of its own is started here
    write_checkpoint(tmp_path, 100)
    own, found = first_cells(section(JSON, "`fleetctl ckpt`")), first_cells(section(JSON, "A checkpoint"))
    assert printed_keys("ckpt", "verify", str(tmp_path)) == found
    assert printed_keys("ckpt", "ls", str(tmp_path)) == found
    assert set(printed_keys("ckpt", "resolve", str(tmp_path))) == {*own, *found}


def test_the_keys_of_an_interval(runs: Path) -> None:
    own = first_cells(section(JSON, "An interval"))
    assert printed_keys("ckpt", "interval", "--cost", "1s") == own
    assert printed_keys("ckpt", "interval", "r-1") == own
    assert ["run_id", "task", *keys_of(make_plan(Observed(), 1))] == own


def test_every_validity_and_level_is_explained() -> None:
    commands = section(PAGES["docs/checkpoints.md"], "Commands")
    assert first_cells(commands) == [*Validity, *(level.name.lower() for level in Level)]


def test_the_keys_of_an_error(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "nothing", "--json"]) == 12
    assert first_cells(section(JSON, "Errors")) == list(json.loads(capsys.readouterr().err))


def test_the_keys_of_a_pass_of_the_daemon() -> None:
    action = Action(Deed.HOLD, "r-1", "c/1/0", "why", "stop")
    interruption = Interruption("r-1", "1.0", "c/1/0", NOW, (), "f", (), None)
    incident = Incident("class", "node", NOW, None)
    said = as_json(
        Passed(NOW, "c", "operator", 0.0, True, done=(Done(action, NOW, Outcome.DONE),)),
    )
    assert keys_in("`fleetctl daemon`") == set(said)
    assert keys_in("An action") == set(said["actions"][0])
    assert keys_in("An interruption") == set(interruption_json(interruption))
    assert keys_in("An incident") == set(incident_json(incident))
    notice = Notice("", NOW, "c", "hold", "", (), "", "")
    assert set(notice.as_json()) == set(re.findall(r"`(\w+)`", section(JSON, "A notice")))


def keys_in(title: str) -> set[str]:
    return set(first_cells(section(JSON, title)))


def test_every_metric_and_rule_of_the_daemon_is_described() -> None:
    page = PAGES["docs/daemon.md"]
    rows = re.findall(r"^\| `(fleetctl_daemon_\w+)` \| (\w+) \| (.*) \|$", page, re.M)
    assert rows == [(metric.name, metric.kind, metric.help) for metric in METRICS]
    source = "".join(path.read_text() for path in (ROOT / "fleetctl" / "recovery").glob("*.py"))
    rules = set(first_cells(section(page, "Rules")))
    assert rules, "a table of rules"
    assert not {rule for rule in rules if f'"{rule}"' not in source}


def test_every_cause_and_advice_is_explained() -> None:
    page = PAGES["docs/recovery.md"]
    assert set(first_cells(section(page, "What follows from what"))) == {*CauseClass}
    row = re.search(r"^\| `advice` \| (.*) \|$", PAGES["docs/daemon.md"], re.M)
    assert row
    assert set(re.findall(r"`(\w+)`", row[1])) == {*CauseAdvice} - {CauseAdvice.EARLIER}


def test_every_command_has_its_json_section() -> None:
    for path in COMMANDS:
        if len(path) == 2:
            assert re.search(rf"^## `{' '.join(path)}\b", JSON, re.M), path


# Tables made from the code


def state_rows() -> list[str]:
    seen, rows = view(add_up(RECORD, (), {}), None, None), list[str]()
    for state in RunState:
        code = exit_code_of(msgspec.structs.replace(seen, state=state)) if state.is_finished else "it waits"
        rows.append(f"| `{state}` | {'yes' if state.is_finished else 'no'} | {code} |")
    return rows


def code_rows() -> list[str]:
    for module in pkgutil.walk_packages(fleetctl.__path__, "fleetctl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)  # an error is in the tree once its module is imported
    rows = [(0, "", "Done; of `wait`: the run completed."), *exit_codes()]
    rows.append((_INTERNAL_EXIT_CODE, "", "A mistake in fleetctl itself; `--debug` shows where."))
    rows.append((INTERRUPTED_EXIT_CODE, "", "Ctrl-C. Runs go on."))
    return [
        f"| {code} | {f'`{name}`' if name else ''} | {meaning} |".replace("|  |", "| |") for code, name, meaning in rows
    ]


def check_rows() -> list[str]:
    def when(phases: tuple[Phase, ...]) -> str:
        return "all" if {*phases} == {*Phase} else ", ".join(one.value for one in Phase if one in phases)

    return [
        f"| `{name}` | {check.title} | {check.reads} | {when(check.phases)} | `{check.care.name.lower()}` |"
        for name, check in NODE_CHECKS.items()
    ]


@pytest.mark.parametrize(
    ("page", "name", "make"),
    [
        ("json.md", "run states", state_rows),
        ("json.md", "exit codes", code_rows),
        ("checks.md", "node checks", check_rows),
    ],
)
def test_the_tables_are_those_of_the_code(page: str, name: str, make: Any, update_golden: bool) -> None:
    path = DOCS / page
    table = rf"(<!-- {name}: [^\n]*-->\n(?:\|[^\n]*\n){{2}})(.*?)(?=<!-- end of {name} -->)"
    text, wanted = path.read_text(encoding="utf-8"), "".join(f"{row}\n" for row in make())
    if update_golden:
        text = re.sub(table, lambda match: match[1] + wanted, text, flags=re.S)
        path.write_text(text, encoding="utf-8")
    match = re.search(table, text, re.S)
    assert match
    assert match[2] == wanted


def test_what_is_called_ours_beside_other_suites_is_there() -> None:
    rows = re.findall(
        r"^\| ([^|]*) \| ([^|]*) \|", section(PAGES["docs/checks.md"], "Beside thirteen public suites"), re.M
    )
    named = [name for _, ours in rows for name in re.findall(r"`(\w+)`", ours)]
    # what no suite has a line for
    alone = {"files", "gpu_model", "memory_total", "ecc_mode", "site", "budget", "spool", "bug"}
    assert set(named) == {*NODE_CHECKS} - alone


def test_every_state_is_explained() -> None:
    assert re.findall(r"^- `(\w+)`: \S", section(JSON, "States of a run"), re.M) == list(RunState)


# The run directory


def test_the_keys_of_run_json() -> None:
    assert set(first_cells(section(RUNDIR, "run.json"))) == {"schema", *RunRecord.__struct_fields__}


def test_the_keys_of_a_claim() -> None:
    names = re.findall(r"`(\w+)`", section(RUNDIR, "Claims"))
    assert {"schema", *Claim.__struct_fields__} <= set(names)


@pytest.mark.parametrize(("title", "struct"), [("The pulse", Pulse), ("The word", Word)])
def test_the_keys_of_what_head_and_daemon_say(title: str, struct: type[msgspec.Struct]) -> None:
    assert set(first_cells(section(RUNDIR, title))) == {"schema", *struct.__struct_fields__}


def written_events() -> dict[str, set[str]]:
    """What the code writes: the fields of each kind, as they stand in calls of `append`."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "fleetctl").rglob("*.py"):
        tree = ast.parse(path.read_text())
        facts = {
            str(key.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            for key in node.value.keys
            if isinstance(key, ast.Constant) and ast.unparse(node.targets[0]) == "facts"
        }
        for node in ast.walk(tree):
            name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or (name, len(node.args)) not in (("append", 2), ("note", 2)):
                continue
            kind = ast.unparse(node.args[1 if name == "append" else 0]).removeprefix("EventKind.")
            if kind not in EventKind.__members__:
                continue
            fields = found.setdefault(EventKind[kind].value, set())
            fields.update(() if name == "append" else ("submission", "attempt", "task"))  # launch.lead.Lead.note
            for word in node.keywords:
                fields.update([word.arg] if word.arg else facts)
    return found


def test_every_event_is_described_with_its_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", section(RUNDIR, "Events"), re.M)
    assert [kind for kind, _ in rows] == list(EventKind)
    described = {kind: {"submission", *re.findall(r"`(\w+)`", fields)} for kind, fields in rows}
    assert described == written_events()


# What the training gets


def test_every_promised_variable_is_described(tmp_path: Path) -> None:
    job = JobIdentity("1", "1", None, None, "n1", 0)
    promised = {*run_environment({}, RunDir(tmp_path), "1.0", job), *rendezvous({}, "n1")}
    order = CheckpointOrder("/c", "own", "latest", interval_s=60)
    promised |= set(checkpoint_environment(order, Resume("/c/step", 1), None, make_plan(Observed(), 1)))
    promised |= set(re.findall(r"(\w+)=", _RANKS))
    assert promised <= set(first_cells(section(GUIDE, "What each task gets")))


@pytest.mark.parametrize("page", ["docs/guide.md", "docs/operators.md"])
def test_the_sbatch_variables_are_those_of_the_code(page: str) -> None:
    assert set(re.findall(r"`(SBATCH_[A-Z]+)`", PAGES[page])) == set(_SBATCH_DEFAULTS)


# Pages


@pytest.mark.parametrize("block", fenced("yaml"))
def test_every_example_loads(block: str) -> None:
    load_spec(block, "train.yaml")


@pytest.mark.parametrize("block", fenced("python"))
def test_every_program_is_python(block: str) -> None:
    ast.parse(block)


def anchors(text: str) -> set[str]:
    """What headings are called in links, as code hosts do it."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", PAGES[page], flags=re.S)):
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.resolve().is_relative_to(ROOT), link
        assert path.exists(), link
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link


def test_every_page_can_be_reached() -> None:
    linked = {target for text in PAGES.values() for target in re.findall(r"\]\((?:docs/)?([\w-]+\.md)[)#]", text)}
    assert {Path(page).name for page in PAGES if page.startswith("docs/")} <= linked


def test_every_decision_has_its_five_lines() -> None:
    _, *decisions = re.split(r"^## .*$", PAGES["docs/decisions.md"], flags=re.M)
    for decision in decisions:
        labels = re.findall(r"^- \*\*(.*?)\*\*: \S", decision, re.M)
        assert labels == ["Context", "Decision", "Rejected", "Consequence", "Revisit when"], decision
        assert len(decision.split("\n- ")) == 6, decision
