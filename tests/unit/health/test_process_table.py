"""What /proc says of a process: whose it is, by its cgroup and by its own word."""

from __future__ import annotations

import pytest

from fleetctl.health.process_table import job_of_cgroup, job_of_environ, role_of_cgroup


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "login"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u1.service\n", "login"),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", "manager"),
        ("4:memory:/\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n0::/\n", "login"),
        ("0::/system.slice/slurmd.service\n", ""),
        ("0::/system.slice/x/user.slice/y\n", ""),
        ("0::/\n", ""),
        ("nonsense", ""),
    ],
)
def test_the_role_by_a_cgroup(text: str, role: str) -> None:
    assert role_of_cgroup(text) == role


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7001/step_0/user/task_0\n", "7001"),
        ("0::/system.slice/node1_slurmstepd.scope/job_7001/step_batch\n", "7001"),
        ("0::/slurmstepd.scope/job_7001\n", "7001"),
        ("9:freezer:/slurm/uid_1000/job_7001/step_0\n4:memory:/slurm/uid_1000/job_7001\n0::/\n", "7001"),
        ("9:freezer:/slurm_node1/uid_1000/job_7001/step_0\n", "7001"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_7001\n", ""),
        ("0::/system.slice/slurmstepd.scope/job_70x1\n", ""),
        ("0::/system.slice/slurmstepd.scope/job_7001evil\n", ""),
        ("9:freezer:/slurm/uid_1/job_7001\n4:memory:/slurm/uid_1/job_7002\n", None),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_the_job_of_a_cgroup(text: str, expected: str | None) -> None:
    assert job_of_cgroup(text) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"A=1\0SLURM_JOB_ID=7001\0B=2\0", "7001"),
        (b"SLURM_JOB_ID=7001\0SLURM_JOB_ID=7001\0", "7001"),
        (b"SLURM_JOB_ID=7001\0SLURM_JOB_ID=7002\0", None),
        (b"X_SLURM_JOB_ID=7001\0A=SLURM_JOB_ID=7001\0", ""),
        (b"A=1\nSLURM_JOB_ID=7001\0", ""),
        (b"SLURM_JOB_ID=\xff\0", "�"),
        (b"", ""),
    ],
)
def test_the_job_of_an_environment(data: bytes, expected: str | None) -> None:
    assert job_of_environ(data, whole=True) == expected
    assert job_of_environ(data, whole=False) is None
