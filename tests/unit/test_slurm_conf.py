"""slurm.conf as a file; tests/integration/test_doctor_slurm.py asks slurmctld whether it is read so."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.errors import CannotTell
from fleetctl.ops.slurm_conf import Conf, read_conf


def read_files(files: dict[str, str]) -> Conf:
    def read(path: Path) -> str:
        name = path.relative_to("/etc/slurm").as_posix()
        if name not in files:
            raise FileNotFoundError(2, "No such file or directory")
        return files[name]

    return read_conf(Path("/etc/slurm/slurm.conf"), read)


def test_files_are_read_as_slurm_reads_them() -> None:
    files = {
        "slurm.conf": "killwait = 45 # no\nInclude sub/more.conf\nTaskPlugin=a,\\\nb\nPartitionName=p \\\n Nodes=ALL\n",
        "sub/more.conf": 'KILLWAIT="90"\nPrologFlags+=Alloc\n#Prolog=/x\nMailDomain=a\\#b\\\\c\nInclude next.conf\n',
        "sub/next.conf": "TreeWidth\t-= \t7\nMailProg='/x'\nInclude only.conf\nMinJobAge=8\\",
        "next.conf": "TreeWidth=8\n",
        "only.conf": 'SchedulerParameters=a,\\ # why\n# here it ends\nJobCompLoc="x y"\nReturnToService="1"9\n',
    }
    conf = read_files(files)
    assert (conf.get("KillWait"), conf.settings["killwait"].place) == ("90", "more.conf:1")
    assert conf.get("PrologFlags") == "Alloc"
    assert not conf.get("Prolog")
    assert conf.get("TaskPlugin") == "a,b"
    assert conf.named("partitionname") == ({"partitionname": "p", "nodes": "ALL"},)
    assert conf.get("MailDomain") == "a#b\\c"
    assert conf.get("TreeWidth") == "7"  # beside the file that includes, as 22.05 does
    assert conf.get("MailProg") == "'/x'"
    assert conf.get("SchedulerParameters") == "a,"  # found beside slurm.conf, as the manual says
    assert (conf.get("JobCompLoc"), conf.get("ReturnToService")) == ("x y", '"1"9')
    assert conf.get("MinJobAge") == "8"


def test_the_name_of_the_cluster_stands_for_itself() -> None:
    files = {"slurm.conf": "ClusterName=Big\nInclude %c.conf\n", "big.conf": "KillWait=9\n"}
    assert (read_files(files).get("KillWait"), read_files(files).unread) == ("9", ())
    with pytest.raises(CannotTell, match=r"/etc/slurm/big\.conf: No such file"):
        read_files({"slurm.conf": files["slurm.conf"]})


def test_a_circle_of_files_ends() -> None:
    with pytest.raises(CannotTell, match="include each other"):
        read_conf(Path("slurm.conf"), lambda path: "Include slurm.conf\n")


def test_a_line_goes_on_without_its_backslash() -> None:
    assert read_files({"slurm.conf": "MailDomain=a\\ \n\\#b\\\\\nKillWait=9\n"}).get("MailDomain") == "a#b\\"
