"""The epilog: clean up after the job, then look at what it leaves, as the prolog does."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from fleetctl.health import epilog, phases
from fleetctl.health.gather import Where
from fleetctl.health.judge_log import APP_WINDOW_S
from fleetctl.health.phases import Look, Tools
from fleetctl.health.prolog import Beside, Ended, Job, answer, look_for_job
from fleetctl.health.site import Site
from fleetctl.health.state import Change, JobStart, State, with_app_xid


def run_epilog(site: Site, where: Where, job: Job, tools: Tools, environ: Mapping[str, str], began: float) -> Ended:
    """The whole epilog. The look has its own time: a job that is slow to die must not look like hung hardware."""
    its = epilog.job_from(environ)
    cleaned = epilog.Cleaned()
    if its is not None:
        place = epilog.Place(site.folder, where.boot_id, (site.shm, *site.tmp))
        cleaned = epilog.clean_up(its, place, tools.apart)
        job = job._replace(told=(*job.told, *cleaned.findings))
    until = phases.plan(site, tools.monotonic())
    now = where._replace(at=tools.epoch(), uptime_s=tools.monotonic())
    seen = look_for_job(site, now, job, tools, until)
    start = None if its is None else seen.gathered.state.jobs.get(its.job_id)
    usage = None if its is None else epilog.usage_of(cleaned, start, seen.readings, job.asked)
    always: Tuple[Change, ...] = ()
    if its is not None:
        ended_at = seen.readings.at if cleaned.ended_at is None else cleaned.ended_at
        always = (epilog.job_ended(its.job_id, ended_at), app_xids(seen, start, its.job_id, tools))
    return answer(site, now, job, tools, until, began, seen, Beside(always=always, usage=usage))


def app_xids(seen: Look, start: Optional[JobStart], job_id: str, tools: Tools) -> Change:
    """The Xids of applications that this job had: the same one in another job's log makes the GPU suspect."""
    since_s = None if start is None else start.uptime_s
    keys = () if since_s is None else tools.app_xids(seen.readings, since_s)

    def change(state: State) -> State:
        for key in keys:
            pci, _, number = key.partition("/")
            state = with_app_xid(state, pci, int(number), job_id, seen.readings.at, APP_WINDOW_S)
        return state

    return change
