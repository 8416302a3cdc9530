"""`fleetctl node install` over real sshd: three nodes on loopback, each with its own key and its own disk."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl import ssh
from fleetctl.clock import SystemClock
from fleetctl.errors import SshError
from fleetctl.known_hosts import KnownHosts
from fleetctl.ops import far_side, install
from fleetctl.ops.bundle import make_bundle
from fleetctl.ops.install_plan import HostResult, Outcome
from tests.integration.conftest import short_dir
from tests.sshd import Nodes, three_nodes
from tests.support import Cli, wait_until

PYTHON = "/usr/bin/python3"
RSA = base64.b64encode(b"\0\0\0\7ssh-rsa\0\0\0\3\1\0\1\0\0\1\1\0" + b"\xab" * 256).decode()


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    place = short_dir()
    with three_nodes(place) as nodes:
        yield nodes
    shutil.rmtree(place)


@pytest.fixture
def nodes(started: Nodes) -> Nodes:
    """Three nodes that never had anything installed."""
    started.renew()
    return started


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli({"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, tmp_path)


def run(cli: Cli, nodes: Nodes, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = cli("node", "install", nodes.hosts, *nodes.options, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def wanted(nodes: Nodes) -> install.Nodes:
    login = ssh.Login("root", nodes.all[0].port, nodes.identity, nodes.known_hosts)
    hosts = tuple(node.address for node in nodes.all)
    return install.Nodes(hosts, login, str(nodes.prefix), PYTHON, 2, SystemClock())


def site(tmp_path: Path, **keys: object) -> str:
    path = tmp_path / "my-site.json"
    path.write_text(json.dumps(keys))
    return f"--site={path}"


def test_three_nodes_get_a_whole_release_and_the_lines_for_slurm_conf(cli: Cli, nodes: Nodes, tmp_path: Path) -> None:
    said = run(cli, nodes, site(tmp_path, deadline_s=7))
    assert [line.split("\t")[1] for line in said.stdout.splitlines()[1:4]] == ["installed"] * 3
    assert f"\nProlog={nodes.prefix}/current/prolog/fleetctl-prolog.sh\n" in said.stdout
    assert "\r" not in said.stderr  # no progress into a pipe
    digest = make_bundle(PYTHON, json.dumps({"deadline_s": 7}).encode()).digest
    for node in nodes.all:
        assert digest.startswith(node.current())
        release = node.disk / "current"
        assert far_side.digest_of(far_side.files_in(str(release.resolve()))) == digest
        assert json.loads((release / "site.json").read_text()) == {"deadline_s": 7}
        assert (release / "python").read_text() == f"{PYTHON}\n"
        assert os.access(release / "prolog" / "fleetctl-prolog.sh", os.X_OK)
        assert list((release / "fleetctl" / "health" / "__pycache__").glob("model.*.pyc"))
        assert sorted(path.name for path in node.disk.iterdir()) == ["current", "releases"]


def test_the_same_again_changes_nothing(cli: Cli, nodes: Nodes) -> None:
    run(cli, nodes)
    before = [(node.disk / "current").lstat().st_ino for node in nodes.all]
    again = json.loads(run(cli, nodes, "--json").stdout)
    assert [host["outcome"] for host in again["hosts"]] == ["same"] * 3
    assert [(node.disk / "current").lstat().st_ino for node in nodes.all] == before


def test_a_changed_host_key_is_refused_and_the_others_go_on(cli: Cli, nodes: Nodes) -> None:
    changed = nodes.all[1]
    changed.stop()
    changed.host_key = changed.new_key("other")
    changed.start()
    said = run(cli, nodes, code=15)
    assert f"{changed.address}: its host key is not the one in {nodes.known_hosts}" in said.stderr
    assert f"ssh-keygen -R '[{changed.address}]:{changed.port}' -f {nodes.known_hosts}" in said.stderr
    assert said.stderr.rstrip().endswith(f"1 of 3 nodes failed: {changed.address}")
    assert "Prolog=" not in said.stdout  # Slurm would drain the node that lacks it
    assert "No lines for slurm.conf yet" in said.stderr
    assert json.loads(run(cli, nodes, "--json", code=15).stdout)["slurm_conf"] == []
    assert list(changed.disk.iterdir()) == []
    assert len({nodes.all[0].current(), nodes.all[2].current()}) == 1
    nodes.know()
    run(cli, nodes)
    assert changed.current() == nodes.all[0].current()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "its host key is not in"),
        ("@cert-authority * {key}", "its host key is not in"),
        ("{name} {key}\n@revoked * {key}", "its host key is revoked in"),
        ("{name} ssh-rsa {other}\n@revoked * {key}", "its host key is revoked in"),
        ("{name} ssh-ed25519 AAAA", "its host key is not in"),
        ("{name} ssh-ed25519 A", "the line there holds no key that can be read"),
        ("{name} ssh-ed25519 {cut}", "the line there holds no key that can be read"),
        ("{name} ssh-made-up {cut}", "the line there holds no key that can be read"),
    ],
    ids=["unknown", "only an authority", "revoked", "one is revoked", "short", "no base64", "cut", "new kind"],
)
def test_a_host_key_that_does_not_count_is_refused(line: str, words: str, cli: Cli, nodes: Nodes) -> None:
    name, _, key = nodes.all[0].known_line.strip().partition(" ")
    others = "".join(node.known_line for node in nodes.all[1:])
    cut = key.split()[1][:20]
    log = nodes.place / f"log-{nodes.all[0].address}"
    before = log.read_text().count("Accepted publickey")
    nodes.known_hosts.write_text(f"{others}{line.format(name=name, key=key, cut=cut, other=RSA)}\n")
    said = run(cli, nodes, code=15)
    assert said.stderr.startswith(f"fleetctl: {nodes.all[0].address}: its host key ")
    assert words in said.stderr.splitlines()[0]
    assert log.read_text().count("Accepted publickey") == before  # nobody logged in
    assert list(nodes.all[0].disk.iterdir()) == []
    assert nodes.all[1].current() == nodes.all[2].current()


@pytest.mark.parametrize("form", ["[127.0.0.*]:{port} {key}", "[127.0.0.?]:{port},other {key}"])
def test_patterns_of_known_hosts_count(form: str, cli: Cli, nodes: Nodes) -> None:
    for node in nodes.all[1:]:
        node.stop()
        node.host_key = nodes.all[0].host_key
        node.start()
    _, _, key = nodes.all[0].known_line.strip().partition(" ")
    nodes.known_hosts.write_text(form.format(port=nodes.all[0].port, key=key) + "\n")
    run(cli, nodes)


def test_hashed_names_of_known_hosts_count(cli: Cli, nodes: Nodes) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", nodes.known_hosts], check=True, capture_output=True)
    assert "127.0.0" not in nodes.known_hosts.read_text()
    run(cli, nodes)


def test_a_roll_back_goes_to_the_release_before_and_forward_again(cli: Cli, nodes: Nodes, tmp_path: Path) -> None:
    said = run(cli, nodes, "--rollback", code=15)
    assert f"{nodes.all[0].address}: nothing is installed in {nodes.prefix}" in said.stderr
    run(cli, nodes, site(tmp_path, deadline_s=7))
    first = nodes.all[0].current()
    assert "no earlier release" in run(cli, nodes, "--rollback", code=15).stderr
    run(cli, nodes, site(tmp_path, deadline_s=6))
    second = nodes.all[0].current()
    assert first != second
    back = json.loads(run(cli, nodes, "--rollback", "--json").stdout)
    assert [(host["before"], host["after"]) for host in back["hosts"]] == [(second, first)] * 3
    assert back["slurm_conf"] == []
    assert {node.current() for node in nodes.all} == {first}
    run(cli, nodes, "--rollback")
    assert {node.current() for node in nodes.all} == {second}


def test_diff_names_what_would_change_and_changes_nothing(cli: Cli, nodes: Nodes, tmp_path: Path) -> None:
    run(cli, nodes, site(tmp_path, deadline_s=7))
    before = nodes.all[0].current()
    said = run(cli, nodes, site(tmp_path, deadline_s=6), "--diff").stdout
    assert said.count("~ site.json") == 3
    assert '-{"deadline_s": 7}' in said
    assert '+{"deadline_s": 6}' in said
    assert "pynvml.py" not in said
    assert "Prolog=" not in said
    assert {node.current() for node in nodes.all} == {before}
    assert [host["outcome"] for host in json.loads(run(cli, nodes, "--diff", "--json").stdout)["hosts"]] == [
        "differs"
    ] * 3
    same = json.loads(run(cli, nodes, site(tmp_path, deadline_s=7), "--diff", "--json").stdout)
    assert [host["outcome"] for host in same["hosts"]] == ["same"] * 3


def test_three_releases_are_kept(cli: Cli, nodes: Nodes, tmp_path: Path) -> None:
    names = []
    for number in range(1, 6):
        run(cli, nodes, site(tmp_path, deadline_s=number))
        names.append(nodes.all[0].current())
    assert {path.name for path in (nodes.all[0].disk / "releases").iterdir()} == set(names[-3:])


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "there is no"),
        ("#!/bin/sh\nprintf '\\nfleetctl-python 3.6\\n'; exit 93\n", "is Python 3.6; the node checks need 3.9"),
        ("#!/bin/sh\necho 'bad magic' >&2; exit 2\n", "ended with status 2 and said: bad magic"),
    ],
    ids=["none", "old", "broken"],
)
def test_a_node_without_a_fit_python_is_refused(program: str | None, words: str, cli: Cli, nodes: Nodes) -> None:
    python = nodes.place / "python"
    python.unlink(missing_ok=True)
    if program is not None:
        python.write_text(program)
        python.chmod(0o755)
    said = run(cli, nodes, f"--python={python}", code=15)
    assert words in said.stderr
    assert said.stderr.count("failed: 127.0.0.[1-3]") <= 1
    assert list(nodes.all[0].disk.iterdir()) == []


def test_a_prefix_that_others_can_write_is_refused(cli: Cli, nodes: Nodes) -> None:
    nodes.all[2].disk.chmod(0o777)
    said = run(cli, nodes, code=15)
    assert f"{nodes.all[2].address}: others can write {nodes.prefix}" in said.stderr
    assert list(nodes.all[2].disk.iterdir()) == []


def test_a_release_that_somebody_changed_is_put_right_beside_it(cli: Cli, nodes: Nodes) -> None:
    run(cli, nodes)
    node = nodes.all[0]
    (node.disk / "current" / "fleetctl" / "health" / "model.py").write_text("raise SystemExit(1)\n")
    run(cli, nodes)
    assert node.current() == f"{nodes.all[1].current()}.1"
    assert "SystemExit" not in (node.disk / "current" / "fleetctl" / "health" / "model.py").read_text()
    said = run(cli, nodes, "--rollback", code=15)
    assert f"the earlier release {nodes.all[1].current()} is damaged" in said.stderr


def test_a_node_that_answers_nothing_holds_up_no_other(nodes: Nodes) -> None:
    nodes.all[0].stop()
    told: list[str] = []
    silent = socket.create_server((nodes.all[0].address, nodes.all[0].port))

    def tell(done: int, last: HostResult) -> None:
        told.append(last.host)
        if done == 2:
            silent.close()  # until here it neither spoke nor hung up

    hosts = tuple(node.address for node in nodes.all)
    results = install.install(wanted(nodes), make_bundle(PYTHON), tell)
    assert [one.outcome for one in results] == [Outcome.FAILED, Outcome.INSTALLED, Outcome.INSTALLED]
    assert told == [*hosts[1:], hosts[0]]
    assert results[0].words.startswith(f"{hosts[0]}: SSH did not come up")


def test_a_node_that_answers_nothing_is_given_up(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_HANDSHAKE_S", 0.5)
    nodes.all[0].stop()
    with socket.create_server((nodes.all[0].address, nodes.all[0].port)):
        login = ssh.Login("root", nodes.all[0].port, nodes.identity, nodes.known_hosts)
        with pytest.raises(SshError, match=f"{nodes.all[0].address}: SSH did not come up"):
            ssh.connect(nodes.all[0].address, login, KnownHosts.of(login.known_hosts), SystemClock())


@pytest.mark.parametrize(
    ("argv", "ran"),
    [
        (["printf", "%s|", "a b", "$HOME", "*", "it's", "\n"], (0, "a b|$HOME|*|it's|\n|")),
        (["sh", "-c", "echo out; echo err >&2; exit 7"], (7, "out\nerr\n")),
        (["cat"], (0, "given")),
        (["false"], (1, "")),
        (["no-such-program"], (127, None)),
    ],
)
def test_a_command_arrives_word_by_word(argv: list[str], ran: tuple[int, str | None], nodes: Nodes) -> None:
    node = nodes.all[0]
    login = ssh.Login("root", node.port, nodes.identity, nodes.known_hosts)
    with ssh.connect(node.address, login, KnownHosts.of(login.known_hosts), SystemClock()) as there:
        status, text = there.run(argv, stdin=b"given", timeout_s=30)
    assert status == ran[0]
    assert ran[1] is None or text == ran[1]


def test_a_command_that_does_not_end_is_left(nodes: Nodes) -> None:
    node = nodes.all[0]
    login = ssh.Login("root", node.port, nodes.identity, nodes.known_hosts)
    with ssh.connect(node.address, login, KnownHosts.of(login.known_hosts), SystemClock()) as there:
        with pytest.raises(SshError, match=r"sleep did not end within 0\.2 s"):
            there.run(["sleep", "3"], timeout_s=0.2)
        assert there.run(["true"], timeout_s=30) == (0, "")


def test_a_connection_that_breaks_says_so(nodes: Nodes) -> None:
    node = nodes.all[0]
    login = ssh.Login("root", node.port, nodes.identity, nodes.known_hosts)
    with (
        ssh.connect(node.address, login, KnownHosts.of(login.known_hosts), SystemClock()) as there,
        pytest.raises(SshError, match=f"{node.address}: the connection broke"),
    ):
        there.run(["sh", "-c", "kill -9 $PPID; cat"], timeout_s=30)


def test_a_command_that_prints_without_end_is_left_with_the_true_reason(nodes: Nodes) -> None:
    node = nodes.all[0]
    login = ssh.Login("root", node.port, nodes.identity, nodes.known_hosts)
    with (
        ssh.connect(node.address, login, KnownHosts.of(login.known_hosts), SystemClock()) as there,
        pytest.raises(SshError, match=f"{node.address}: it answered more than 8 MiB"),
    ):
        there.run(["yes"], timeout_s=60)


def test_a_command_that_reads_drop_by_drop_is_left_at_its_deadline(nodes: Nodes) -> None:
    node = nodes.all[0]
    login = ssh.Login("root", node.port, nodes.identity, nodes.known_hosts)
    drip = "while head -c 100000 | wc -c; do sleep 0.05; done"  # it takes some, always within a second
    began = time.monotonic()
    with (
        ssh.connect(node.address, login, KnownHosts.of(login.known_hosts), SystemClock()) as there,
        pytest.raises(SshError, match="sh did not end within 1 s"),
    ):
        there.run(["sh", "-c", drip], stdin=bytes(100_000_000), timeout_s=1)
    assert time.monotonic() - began < 10


def test_a_command_that_a_signal_ended_has_no_status(nodes: Nodes) -> None:
    node = nodes.all[0]
    login = ssh.Login("root", node.port, nodes.identity, nodes.known_hosts)
    with ssh.connect(node.address, login, KnownHosts.of(login.known_hosts), SystemClock()) as there:
        assert there.run(["sh", "-c", "echo so far; kill -9 $$"], timeout_s=30) == (-1, "so far\n")


@pytest.mark.parametrize("host", ["a..b", "x" * 64, f"{'x' * 60}." * 5, "-", "no-such-host.invalid"])
def test_an_odd_host_name_costs_that_host_alone(host: str, cli: Cli, nodes: Nodes) -> None:
    done = cli("node", "install", host, nodes.hosts, *nodes.options)
    assert done.returncode == 15, done.stderr
    assert f"{host}: no such host name here" in done.stderr
    assert len({node.current() for node in nodes.all}) == 1


def test_a_garbled_answer_costs_that_host_alone(cli: Cli, nodes: Nodes) -> None:
    python = nodes.place / "python"
    where = nodes.all[1].address
    garbled = f"cat >/dev/null; printf '{far_side.MARK}%s\\007\\n' '{{\"outcome\": [\"same\"]}}'"
    python.write_text(
        f"#!/bin/sh\ncase $SSH_CONNECTION in\n*' {where} '*) {garbled};;\n*) exec {PYTHON} \"$@\";;\nesac\n"
    )
    python.chmod(0o755)
    said = run(cli, nodes, f"--python={python}", code=15)
    assert f"{where}: it answered nonsense" in said.stderr
    assert "\a" not in said.stderr + said.stdout
    assert said.stderr.rstrip().endswith(f"1 of 3 nodes failed: {where}")


def test_a_bug_that_one_host_brings_about_costs_that_host_alone(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(host: str, *rest: Any) -> ssh.Ssh:
        if host == nodes.all[0].address:
            raise KeyError(host)
        return ssh.connect(host, *rest)

    monkeypatch.setattr("fleetctl.ops.install.connect", connect)
    results = install.install(wanted(nodes), make_bundle(PYTHON), lambda done, last: None)
    assert [one.outcome for one in results] == [Outcome.FAILED, Outcome.INSTALLED, Outcome.INSTALLED]
    assert results[0].words.startswith(f"{nodes.all[0].address}: a bug of fleetctl: KeyError")


def test_what_had_ended_before_ctrl_c_is_known(nodes: Nodes) -> None:
    slow = nodes.all[1]
    slow.stop()

    def tell(done: int, last: HostResult) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with socket.create_server((slow.address, slow.port)):  # takes the connection, and says nothing
        results = install.install(wanted(nodes), make_bundle(PYTHON), tell)
    assert [one.outcome for one in results] == [Outcome.INSTALLED, Outcome.NOT_KNOWN, Outcome.INSTALLED]
    assert {one.after for one in results} == {None, nodes.all[0].current()}


@pytest.mark.parametrize("as_json", [True, False])
def test_after_ctrl_c_it_says_how_far_it_came(as_json: bool, cli: Cli, nodes: Nodes) -> None:
    slow = nodes.all[1]
    slow.stop()
    words = ["--json"] if as_json else []
    with socket.create_server((slow.address, slow.port)):
        process = cli.start("node", "install", nodes.hosts, *nodes.options, *words)
        wait_until(lambda: all((node.disk / "current").is_symlink() for node in (nodes.all[0], nodes.all[2])), "two")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "nodes are not known: " in err
    assert "run it again" in err
    if as_json:
        found = json.loads(out)
        assert [host["outcome"] for host in found["hosts"]][1] == "not_known"
        assert found["slurm_conf"] == []
    else:
        assert f"{slow.address}\tnot_known\t-\t-\t" in out
        assert "Prolog=" not in out


def test_a_release_that_cannot_run_there_is_not_switched_to(cli: Cli, nodes: Nodes, tmp_path: Path) -> None:
    run(cli, nodes)
    before = nodes.all[0].current()
    python = nodes.place / "python"
    python.write_text(f'#!/bin/sh\n[ "$3" = -c ] && exec {PYTHON} "$@"\necho it has no spam >&2\n')
    python.chmod(0o755)
    said = run(cli, nodes, f"--python={python}", site(tmp_path, deadline_s=5), code=15)
    assert said.stderr.count("does not run here: it has no spam") == 3
    assert {node.current() for node in nodes.all} == {before}


def test_a_disk_that_runs_nothing_is_refused(nodes: Nodes) -> None:
    program = f"""if True:
        from fleetctl.ops import bundle, far_side
        made = bundle.make_bundle("{PYTHON}")
        order = dict(verb="install", prefix="{nodes.prefix}", digest=made.digest, keep=3)
        print(far_side.obey(order, made.packed), far_side.look("{nodes.prefix}")["current"])"""
    mounted = f"mount -t tmpfs -o noexec,mode=755 none {nodes.prefix} && exec {sys.executable} -c '{program}'"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted], capture_output=True, text=True, check=True)
    assert "fleetctl-epilog.sh cannot be run in" in done.stdout
    assert "is it mounted with noexec?" in done.stdout
    assert done.stdout.endswith(" None\n")


def test_a_node_that_is_off_is_named(cli: Cli, nodes: Nodes, tmp_path: Path) -> None:
    nodes.all[0].stop()
    said = run(cli, nodes, code=15)
    assert f"{nodes.all[0].address}: nothing listens on port {nodes.all[0].port}" in said.stderr
    assert nodes.all[1].current() == nodes.all[2].current()


def test_a_key_that_nobody_accepts_says_what_to_do(cli: Cli, nodes: Nodes) -> None:
    other = nodes.all[0].new_key("stranger")
    done = cli("node", "install", nodes.hosts, *nodes.options, f"--identity={other}")
    assert done.returncode == 15
    assert "no key was accepted for root\n  --user, --identity, or ssh-add" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["h1", "--diff", "--rollback"], "exclude each other"),
        (["n[1-", "--diff"], "not a Slurm host list"),
        (["h1", "--prefix", "opt"], "--prefix: 'opt' is no absolute path"),
        (["h1", "--prefix", "/opt/a b"], "is no absolute path of plain letters"),
        (["h1", "--python", "python3"], "--python: 'python3' is no absolute path"),
        (["h1", "--site", "/no/site.json"], "/no/site.json cannot be read: No such file"),
        (["h1", "--known-hosts", "/no/hosts"], "/no/hosts cannot be read: No such file"),
        (["h1", "--identity", "/no/key"], "/no/key cannot be read: No such file"),
        (["h1", "--site", "{bad}"], "unknown key dedline_s"),
        (["h1", "--site", "{care}"], "care: no check is called nvlynk"),
        (["h1", "--profile", "{bad}"], "the profile has unknown keys: dedline_s"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_node_is_asked(
    words: list[str], said: str, cli: Cli, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"dedline_s": 3}')
    care = tmp_path / "care.json"
    care.write_text('{"care": {"nvlynk": "watch"}}')
    done = cli("node", "install", *(word.format(bad=bad, care=care) for word in words))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
