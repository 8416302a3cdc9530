"""This host as a place for a sandbox: programs, ports, the directory and the files in it."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import stat
import zlib
from pathlib import Path

from fleetctl import process
from fleetctl.errors import SandboxError, UsageError
from fleetctl.sandbox import conf
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.sandbox.state import LOCK

FOLDERS = ("etc", "run", "log", "spool", "ctld", "dev", "db")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SLURM_PROGRAMS = ("slurmctld", "slurmd", "scontrol", "sinfo", "munged", "munge", "unmunge")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db")
_UTILITIES = ("unshare", "setsid", "mount")
_SOCKET_PATH_MAX_BYTES = 107  # sun_path of unix(7), less its final NUL
_LONGEST_SOCKET = "spool/node64/node64_4294967294.4294967294"  # slurmstepd's own
_NVIDIA_MAJOR = 195
_FIRST_PORT, _END_PORT = 20_000, 32_000  # below the range from which the kernel lends ports to clients


def search_path() -> str:
    """The caller's PATH, then where daemons are: an ordinary user's PATH often lacks sbin."""
    own = os.environ.get("PATH")
    return f"{own}:{_SYSTEM_PATH}" if own else _SYSTEM_PATH


def slurm_version(config: SandboxConfig) -> tuple[int, int]:
    """(22, 5) for 22.05.

    :raises SandboxError: a program that the sandbox needs is not installed.
    """
    _require(_SLURM_PROGRAMS, "slurm-wlm munge")
    _require(_UTILITIES, "util-linux mount")
    if config.accounting:
        _require(_ACCOUNTING_PROGRAMS, "slurmdbd mariadb-server")
    answer = process.run(["slurmctld", "-V"], timeout_s=10, env={"PATH": search_path()})
    match = re.search(r"(\d+)\.(\d+)", answer.stdout)
    if match is None:
        raise SandboxError(f"slurmctld -V printed no version: {(answer.stdout + answer.stderr).strip()!r}")
    return int(match[1]), int(match[2])


def _require(programs: tuple[str, ...], packages: str) -> None:
    missing = [name for name in programs if shutil.which(name, path=search_path()) is None]
    if missing:
        raise SandboxError(f"not installed: {', '.join(missing)}", remedy=f"apt-get install {packages}")


def checked_directory(directory: Path, config: SandboxConfig) -> Path:
    """The directory with its links resolved.

    :raises UsageError: its sockets would have names that are too long, or a private /tmp would hide it.
    """
    resolved = directory.resolve()
    text = str(resolved)
    length = len(os.fsencode(resolved / _LONGEST_SOCKET))
    if length > _SOCKET_PATH_MAX_BYTES:
        raise UsageError(
            f"{text}: too long by {length - _SOCKET_PATH_MAX_BYTES} bytes for its Unix sockets; use a shorter --dir"
        )
    if not re.fullmatch(r"[\w./+@:-]+", text) or "%" in text:
        raise UsageError(f"{text}: slurm.conf takes no blanks, quotes or signs in a path; use another --dir")
    if config.private_tmp and resolved.is_relative_to("/tmp"):
        raise UsageError(f"{text}: a private /tmp would hide it from the nodes; use a --dir outside /tmp")
    if config.private_tmp and os.geteuid() != 0:
        raise UsageError("--private-tmp needs root: an ordinary user may not mount")
    return resolved


def claim_directory(directory: Path) -> None:
    """Make it ours. What is in `FOLDERS` is removed by `up` and `down`, so a directory in other use is refused.

    :raises SandboxError: it holds something else, or cannot be written.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not directory.joinpath(LOCK).exists() and any(directory.iterdir()):
            raise SandboxError(f"{directory} is in other use", remedy="give an empty or new directory as --dir")
        directory.joinpath(LOCK).touch()
    except OSError as error:
        raise SandboxError(f"{directory}: {error.strerror}", remedy="choose another --dir") from None


def survey(config: SandboxConfig, directory: Path, version: tuple[int, int]) -> conf.Site:
    """Free ports and names for a new sandbox."""
    names = config.node_names()
    ctld, dbd, *rest = _free_ports(2 + len(names), first=_FIRST_PORT + zlib.crc32(os.fsencode(directory)) % 10_000)
    return conf.Site(
        directory=str(directory),
        cluster=f"sandbox{ctld}",
        host=socket.gethostname().split(".")[0],
        user=pwd.getpwuid(os.geteuid()).pw_name,
        slurm_version=version,
        ctld_port=ctld,
        dbd_port=dbd,
        node_ports=dict(zip(names, rest, strict=True)),
    )


def _free_ports(count: int, *, first: int) -> list[int]:
    """Ports nobody listens on, found by binding; the start differs by directory, so neighbours seldom race for one."""
    found: list[int] = []
    span = _END_PORT - _FIRST_PORT
    for offset in range(span):
        port = _FIRST_PORT + (first - _FIRST_PORT + offset) % span
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does: TIME_WAIT is free
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise SandboxError(f"no {count} free ports between {_FIRST_PORT} and {_END_PORT}")


def write_files(config: SandboxConfig, site: conf.Site) -> None:
    """Folders, configuration and device files of a new sandbox."""
    root = Path(site.directory)
    for name in FOLDERS:
        root.joinpath(name).mkdir(mode=0o755)
    etc = root / "etc"
    texts = {
        "slurm.conf": conf.slurm_conf(config, site),
        "gres.conf": conf.gres_conf(config, site),
        "cgroup.conf": conf.cgroup_conf(site),
        "hosts": conf.hosts_file(Path("/etc/hosts").read_text(encoding="utf-8"), config.node_names()),
    }
    if config.accounting:
        texts["slurmdbd.conf"] = conf.slurmdbd_conf(site)
    for name, text in texts.items():
        etc.joinpath(name).write_text(text, encoding="utf-8")
        etc.joinpath(name).chmod(0o600 if name == "slurmdbd.conf" else 0o644)  # slurmdbd refuses an open one
    for minor in range(config.gpus if config.nodes else 0):
        _fake_gpu(root / "dev" / f"gpu{minor}", minor)


def _fake_gpu(path: Path, minor: int) -> None:
    """A device file by nature only: no driver answers. Slurm sets CUDA_VISIBLE_DEVICES only for character devices."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(_NVIDIA_MAJOR, minor))
    except PermissionError:  # an ordinary user: a link to a character device that is everywhere
        path.symlink_to("/dev/null")
