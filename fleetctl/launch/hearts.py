"""The ranks of one node, as their agent sees them: who beats, who is silent, and what can be kept of the silent ones.

Used by the agent of each node, and by the head for its own. Standard library only, Python 3.8, like agent.py.

The head says once for each attempt where its ranks beat, {"t": "hearts", "attempt", "folder"}, and maybe that evidence
is wanted, {"t": "gather", "attempt", "ranks"}. What `told` gives goes with every beat to the head:

    {"attempt": "1.0", "world": 8, "nic": BYTES_PER_S, "io": BYTES, "kept": [...],
     "ranks": [[rank, phase, step, age_s, state], ...]}
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

from fleetctl.launch.moved import Moved

MOST_TOLD = 64  # ranks in one beat: a line of the wire has 4096 bytes; of more, each beat tells the next ones
PREFIX = "/dev/shm/fleetctl-"  # in memory: a beat must never wait for a disk
_MOST_RANKS = 4096  # of one node
_OWN_PAUSE_S = 5.0  # who stood still for longer knows nothing about the silence of others
_SUSPENDED_S = 60.0  # longer than any call to a Slurm that is away, for which a head waits
_SILENT_S = 2.0  # the state of a rank is looked up only then ...
_IDLE_S = 10.0  # ... and what all of them move: some 30 ms for 16 ranks of 150 threads
_BEAT_BYTES = 160  # as beats.py writes it
_FILE = re.compile(r"rank-([0-9]{1,8})")
_ATTEMPT = re.compile(r"[0-9]{1,8}\.[0-9]{1,8}")
_WORD = re.compile(rb"[a-z_]{1,20}")
_STEP = re.compile(rb"-|-?[0-9]{1,19}")
_DUMP_S = 10.0  # for the stacks of one process
_MOST_DUMPS = 2  # processes whose stacks are kept
_STACK_BYTES = 256 << 10
_TRACES, _TRACE_BYTES = 8, 1 << 20
_TRACE_VARIABLE = b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE="  # torch's own: the prefix of its flight recorder's dumps
_ENVIRON_BYTES = 256 << 10
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def folder_of(run_id: str, attempt: str, job_id: str) -> str:
    """Where the ranks of an attempt beat, on each node: FLEETCTL_BEATS."""
    return f"{PREFIX}{run_id}-{attempt}-{job_id}"


class Beat:
    """The newest beat of one rank, and since when it is the newest."""

    __slots__ = ("at_s", "is_ours", "phase", "pid", "stamp", "step")

    def __init__(self, stamp: int, pid: int, phase: str, step: Optional[int], at_s: float) -> None:
        self.stamp, self.pid, self.phase, self.step, self.at_s = stamp, pid, phase, step, at_s
        self.is_ours = False  # whether that pid is this rank's here, too: a container may have pids of its own


class Hearts:
    """Watches over the ranks of this node, one attempt after the other. Ages are by our own clock, from when a beat was
    seen to change: a clock that a rank may set is not asked."""

    def __init__(self, attempts_dir: str) -> None:
        self._attempts_dir = attempts_dir
        self._attempt = self._folder = ""
        self._beats: Dict[int, Beat] = {}
        self._world: Optional[int] = None
        self._turn = 0
        self._looked_s: Optional[float] = None
        self._carried: Optional[Tuple[float, int]] = None  # when, and the bytes that our network cards had carried
        self._moved = Moved()
        self._kept: List[str] = []
        self._gathers: Optional[threading.Thread] = None

    def heed(self, message: Dict[str, Any]) -> None:
        """What the head says; what is not for us is left alone. Raises KeyError, TypeError, ValueError."""
        if message.get("t") == "bye":
            self.close()
        elif message.get("t") == "hearts":
            attempt, folder = str(message["attempt"]), str(message["folder"])
            if not _ATTEMPT.fullmatch(attempt) or not folder.startswith(PREFIX) or "/" in folder[len(PREFIX) :]:
                raise ValueError("no place where ranks beat")
            if folder != self._folder:
                self.close()
                self._attempt, self._folder = attempt, folder
                _remove_older(attempt, folder)
        elif message.get("t") == "gather" and str(message["attempt"]) == self._attempt and not self._kept:
            ranks = [int(rank) for rank in message["ranks"][:_MOST_DUMPS]]
            if self._gathers is None or not self._gathers.is_alive():
                self._gathers = threading.Thread(target=self._gather, args=(ranks,), daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads: then without evidence
                    self._gathers.start()

    def told(self, now_s: float) -> Dict[str, Any]:
        """What goes with a beat; nothing before the head has said where to look."""
        if not self._folder:
            return {}
        self._look(now_s)
        ranks = sorted(self._beats)
        start = self._turn % len(ranks) if len(ranks) > MOST_TOLD else 0
        self._turn = start + MOST_TOLD
        chosen = (ranks + ranks)[start : start + MOST_TOLD] if len(ranks) > MOST_TOLD else ranks
        told = [[rank, *self._said(self._beats[rank], now_s)] for rank in chosen]
        found = {"attempt": self._attempt, "world": self._world, "nic": self._nic(now_s), "io": self._io(now_s)}
        return {"hearts": {**found, "ranks": told, "kept": self._kept[:16]}}

    def close(self) -> None:
        """The attempt is over: its beats are forgotten, here and in the folder."""
        if self._folder:
            _remove(self._folder)
        self._attempt = self._folder = ""
        self._beats, self._world, self._looked_s, self._carried, self._kept = {}, None, None, None, []
        self._gathers = None
        self._moved.rest()

    def _look(self, now_s: float) -> None:
        """Read what changed. A pause of our own does not count; after a long one every silence begins anew: a whole
        job that was suspended needs its time to go on."""
        slept_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        if slept_s > _OWN_PAUSE_S:
            for beat in self._beats.values():
                beat.at_s = now_s if slept_s > _SUSPENDED_S else min(now_s, beat.at_s + slept_s)
        self._looked_s = now_s
        found = dict(_beats_in(self._folder))
        for rank in self._beats.keys() - found.keys():  # somebody cleared the memory: it may be well and not know it
            self._beats[rank].phase = "untold"
        for rank, words in found.items():
            stamp, before = int(words[2]), self._beats.get(rank)
            if before is not None and before.stamp == stamp:
                continue
            step = None if words[6] == b"-" else int(words[6])
            beat = Beat(stamp, int(words[3]), words[5].decode("ascii"), step, now_s)
            same = before is not None and before.pid == beat.pid
            beat.is_ours = before.is_ours if before is not None and same else self._is_ours(beat.pid)
            self._beats[rank] = beat
            self._world = self._world if words[4] == b"-" else int(words[4])

    def _said(self, beat: Beat, now_s: float) -> Tuple[str, Optional[int], float, str]:
        age_s = now_s - beat.at_s
        state = self._state(beat) if age_s > _SILENT_S else "?"
        return beat.phase, beat.step, round(age_s, 1), state

    def _state(self, beat: Beat) -> str:
        """The letter of proc(5); X: it was there and is gone; ?: not known."""
        if not beat.is_ours:
            return "?"
        after = _read(f"/proc/{beat.pid}/stat", 4096).rpartition(b") ")[2]
        return after[:1].decode("ascii", "replace") or "X"

    def _is_ours(self, pid: int) -> bool:
        return self._folder.encode() in _read(f"/proc/{pid}/environ", _ENVIRON_BYTES)

    def _io(self, now_s: float) -> int:
        ours = [beat for beat in self._beats.values() if beat.is_ours]
        if not ours or any(now_s - beat.at_s <= _IDLE_S for beat in ours):
            self._moved.rest()
            return 0
        return self._moved.look((beat.pid for beat in ours), now_s)

    def _nic(self, now_s: float) -> int:
        """Bytes per second of all network cards since the look before."""
        before, self._carried = self._carried, (now_s, _carried_bytes())
        if before is None or now_s <= before[0]:
            return 0
        return max(0, int((self._carried[1] - before[1]) / (now_s - before[0])))

    # Evidence

    def _gather(self, ranks: List[int]) -> None:
        """Keep what is known of these ranks, and the flight recorder's dumps; in a thread, for a disk may hang."""
        attempt = self._attempt
        folder = os.path.join(self._attempts_dir, attempt, "evidence")
        kept: List[str] = []
        environ = b""
        for rank in ranks:
            beat = self._beats.get(rank)
            if beat is None or self._state(beat) in ("?", "X"):
                continue
            environ = environ or _read(f"/proc/{beat.pid}/environ", _ENVIRON_BYTES)
            with contextlib.suppress(OSError):
                kept.append(_write(folder, f"rank-{rank}.txt", _stacks(beat.pid)))
        for path in _traces(environ):
            content = _read(path, _TRACE_BYTES)
            with contextlib.suppress(OSError):
                kept += [_write(folder, os.path.basename(path), content)] if content else []
        if attempt == self._attempt:  # else the next one has begun meanwhile
            self._kept = kept or ["nothing"]


def _beats_in(folder: str) -> Iterator[Tuple[int, List[bytes]]]:
    """The words of each rank's newest beat. A folder that is not ours has none, and neither has a file that is no file
    of beats."""
    try:
        handle = os.open(folder, _FOLDER)
    except OSError:
        return
    try:
        if os.fstat(handle).st_uid != os.getuid():
            return
        with contextlib.suppress(OSError):
            for name in os.listdir(handle)[:_MOST_RANKS]:
                match = _FILE.fullmatch(name)
                words = _read(name, _BEAT_BYTES, handle).split() if match else []
                if match and _is_beat(words):
                    yield int(match[1]), words
    finally:
        os.close(handle)


def _is_beat(words: List[bytes]) -> bool:
    if len(words) != 8 or words[:2] != [b"fleetctl-beat", b"1"] or words[2] != words[7]:
        return False
    whole = all(word.isdigit() and len(word) <= 20 for word in (words[2], words[3]))
    known = all(_STEP.fullmatch(word) for word in (words[4], words[6]))
    return whole and known and _WORD.fullmatch(words[5]) is not None


def _read(path: str, most_bytes: int, folder: Optional[int] = None) -> bytes:
    """What is in a file, at most so much of it; nothing if it is none, or is a link."""
    try:
        handle = os.open(path, _READ, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(handle, most_bytes) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(handle)


def _remove(folder: str) -> None:
    """Beats only, and only below a folder of our own."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, _FOLDER)
        try:
            for name in os.listdir(handle) if os.fstat(handle).st_uid == os.getuid() else ():
                if _FILE.fullmatch(name):
                    os.unlink(name, dir_fd=handle)
        finally:
            os.close(handle)
        os.rmdir(folder)


def _remove_older(attempt: str, folder: str) -> None:
    """The folders of this job's older attempts: a head that was killed left them."""
    before, _, after = folder.rpartition(f"-{attempt}-")
    start, end = f"{os.path.basename(before)}-", f"-{after}"
    for name in _listed(os.path.dirname(PREFIX)) if before and after else ():
        number = name[len(start) : -len(end)] if name.startswith(start) and name.endswith(end) else ""
        if _ATTEMPT.fullmatch(number) and _numbers(number) < _numbers(attempt):
            _remove(os.path.join(os.path.dirname(PREFIX), name))


def _numbers(attempt: str) -> List[int]:
    return [int(part) for part in attempt.split(".")]


def _carried_bytes() -> int:
    """By every network card but the loopback, in both directions. InfiniBand counts words of four bytes."""
    total = 0
    for name in _names("/sys/class/net"):
        for which in ("rx_bytes", "tx_bytes"):
            total += _count(f"/sys/class/net/{name}/statistics/{which}") if name != "lo" else 0
    for name in _names("/sys/class/infiniband"):
        for port in _names(f"/sys/class/infiniband/{name}/ports"):
            for which in ("port_rcv_data", "port_xmit_data"):
                total += 4 * _count(f"/sys/class/infiniband/{name}/ports/{port}/counters/{which}")
    return total


def _names(folder: str) -> List[str]:
    return _listed(folder)[:64]


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _count(path: str) -> int:
    text = _read(path, 32).strip()
    return int(text) if text.isdigit() else 0


def _stacks(pid: int) -> bytes:
    """What a process does: its Python stacks where py-spy is installed, and what the kernel tells of its threads."""
    found = [_python_stacks(pid)]
    for thread in _names(f"/proc/{pid}/task"):
        place = f"/proc/{pid}/task/{thread}"
        told = {name: _read(f"{place}/{name}", 8192) for name in ("comm", "wchan", "syscall", "stack")}
        state = _read(f"{place}/stat", 4096).rpartition(b") ")[2][:1]
        found.append(b"thread %b state %b\n" % (thread.encode(), state))
        found += [b"  %b: %b\n" % (name.encode(), text.strip()) for name, text in told.items() if text.strip()]
    return b"".join(found)[:_STACK_BYTES]


def _python_stacks(pid: int) -> bytes:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if program is None:
        return b"py-spy is not installed here\n"
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_DUMP_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"py-spy: {error}\n".encode("utf-8", "replace")
    return ended.stdout + b"\n"


def _traces(environ: bytes) -> List[str]:
    """The dumps of NCCL's flight recorder: PREFIX and the number of a rank."""
    words = [word for word in environ.split(b"\0") if word.startswith(_TRACE_VARIABLE)]
    prefix = os.fsdecode(words[0][len(_TRACE_VARIABLE) :]) if words else ""
    folder, start = os.path.split(prefix)
    if not folder.startswith("/") or not start:
        return []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    named = [name for name in names if name.startswith(start) and name[len(start) :].isdigit()]
    return [os.path.join(folder, name) for name in named[:_TRACES]]


def _write(folder: str, name: str, content: bytes) -> str:
    """A new file of evidence; its name. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "xb") as file:
        file.write(content)
    return name
