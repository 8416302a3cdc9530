"""Records what the accounting commands of this machine's Slurm say of the scene of the fault tests.

    python -m tests.recorded.record tests/recorded/22.05

It starts a sandbox of its own. Names of this machine are replaced: the controller is `head`, the cluster `fleet`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from fleetctl.clock import SystemClock
from fleetctl.sandbox import cluster
from tests.faults.accounting_scene import CONFIG, Scene

_COLUMNS = (
    "DBIndex,JobID,User,UID,Group,Account,Partition,QOS,JobName,State,ExitCode,DerivedExitCode,Submit,Eligible,"
    "Start,End,ElapsedRaw,Suspended,TimelimitRaw,AllocTRES,ReqTRES,NodeList,Comment,Reason,AdminComment,JobIDRaw"
)
_STEP_COLUMNS = "DBIndex,JobID,User,JobName,State,ExitCode,Submit,Start,End,AllocTRES,NodeList,NTasks,JobIDRaw"
MARK = "\x1f22050000\x1f"  # as our adapter makes one: names of the scene have \x1f in them
_SACCT = ("sacct", "-a", "-D", "-P", "--noconvert", f"--delimiter={MARK}", "-S", "uts1000000")
_EVENT = "format=Cluster,NodeName,TimeStart,TimeEnd,State,Reason,User"
_USED = ("-P", "-t", "Seconds", "-T", "gres/gpu", "start=00:00", "end=now")
COMMANDS: dict[str, tuple[str, ...]] = {
    "sacct_helpformat": ("sacct", "--helpformat"),
    "sacct_D_X": (*_SACCT, "-X", "-o", _COLUMNS),
    "sacct_steps": (*_SACCT, "-o", _STEP_COLUMNS),
    "sacctmgr_event": ("sacctmgr", "-P", "show", "event", "start=1970-02-01T00:00:00", _EVENT),
    "sdiag": ("sdiag",),
    "sreport": ("sreport", "cluster", "AccountUtilizationByUser", *_USED),
    "sshare": ("sshare", "-a", "-P", "-o", "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare,LevelFS"),
    "scontrol_show_config": ("scontrol", "show", "config"),
}


def record(scene: Scene, folder: Path) -> None:
    """One file for each command, as it was printed but for the names."""
    scene.cli.environ.update(SLURM_TIME_FORMAT="%s", TZ="UTC", SLURM_BITSTR_LEN="0", LC_ALL="C.UTF-8")
    config = scene.cli.slurm("scontrol", "show", "config")
    named = dict(line.split("=", 1) for line in config.splitlines() if "=" in line)
    names = {key.strip(): value.strip() for key, value in named.items()}
    host = names["SlurmctldHost[0]"].partition("(")[0]
    replaced = ((names["ClusterName"], "fleet"), (host, "head"), (str(scene.sandbox.directory), "/sandbox"))
    for name, argv in COMMANDS.items():
        text = scene.cli.slurm(*argv)
        for old, new in replaced:
            text = text.replace(old, new)
        (folder / f"{name}.txt").write_text(text.replace(str(scene.folder), "/work"))


def main() -> int:
    folder, clock = Path(sys.argv[1]), SystemClock()
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="fc-", dir="/tmp"))
    try:
        scene = Scene(place, cluster.up(CONFIG, place / "slurm", clock))
        scene.play()
        record(scene, folder)
    finally:
        cluster.down(place / "slurm", clock)
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
