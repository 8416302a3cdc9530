"""One leader at a time, on both databases: also where it was stopped, its host was started anew, or a clock moved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from fleetctl.accounting.database import database_url, open_database
from fleetctl.errors import DatabaseError, LeaseLost
from fleetctl.recovery.lease import Leader, Place, boot_id, who_leads
from tests.integration.recovery.ledger import PLACE, Daemon, HandClock, an_action, lapse
from tests.support import wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def make(database: str, clock: HandClock) -> Iterator[MakeDaemon]:
    made: list[Daemon] = []

    def daemon(name: str, place: Place = PLACE, boot: str = "boot") -> Daemon:
        made.append(Daemon(database, name, clock, place, boot))
        return made[-1]

    yield daemon
    for each in made:
        each.close()


def test_the_first_one_leads_and_the_second_stands_by(make: MakeDaemon) -> None:
    one, two = make("one"), make("two")
    assert one.leader.lead()
    assert (one.leader.token, one.leader.left_s(), one.leader.other) == (1, 60.0, "")
    assert not two.leader.lead()
    assert (two.leader.other, two.leader.left_s(), two.leader.leads) == ("one", 0.0, False)
    assert one.leader.lead()  # renewed
    assert one.leader.token == 1
    assert who_leads(two.engine, PLACE) == "one"


def test_daemons_of_other_users_and_clusters_lead_beside_it(make: MakeDaemon) -> None:
    places = [PLACE, Place("c", "user you"), Place("c", "operator"), Place("d", "user me")]
    assert all(make(f"d{number}", place).leader.lead() for number, place in enumerate(places))


def test_a_lapsed_lease_is_taken_and_its_holder_acts_no_more(make: MakeDaemon) -> None:
    one, two = make("one"), make("two")
    assert one.leader.lead()
    number = one.journal.begin(an_action())
    lapse(one)
    assert two.leader.lead()
    assert two.leader.token == 2
    assert one.leader.leads  # it cannot know yet
    with pytest.raises(LeaseLost, match="is lost to two"):
        one.journal.begin(an_action(start="c/8/0"))
    assert one.leader.left_s() == 0
    with pytest.raises(LeaseLost):
        one.leader.renew_for(60)
    assert two.rows("SELECT count(*) FROM daemon_actions") == [(1,)]
    assert [entry.number for entry in two.journal.unfinished()] == [number]


def test_a_leader_whose_own_time_is_over_acts_no_more_though_nobody_took_its_lease(
    make: MakeDaemon, clock: HandClock
) -> None:
    one = make("one")
    assert one.leader.lead()
    clock.sleep(61)
    assert not one.leader.leads
    with pytest.raises(LeaseLost):
        one.journal.begin(an_action())
    with pytest.raises(LeaseLost):  # what was decided before is not done under a lease that is taken anew
        one.leader.renew_for(60)
    assert one.leader.lead()


def test_within_the_margin_nothing_is_begun_any_more(make: MakeDaemon, clock: HandClock) -> None:
    one = make("one")
    assert one.leader.lead()
    clock.sleep(51)
    leads = one.leader.leads
    assert not leads
    one.leader.renew_for(240)
    assert one.leader.leads
    assert one.leader.left_s() == 240


def test_the_same_name_after_a_lapse_is_another_leader(make: MakeDaemon) -> None:
    one = make("one")
    assert one.leader.lead()
    lapse(one)
    again = make("one")
    assert again.leader.lead()
    assert again.leader.token == 2
    with pytest.raises(LeaseLost):
        one.journal.begin(an_action())


def test_a_lease_that_was_given_back_is_taken_at_once(make: MakeDaemon) -> None:
    one, two = make("one"), make("two")
    assert one.leader.lead()
    one.leader.release()
    assert not one.leader.leads
    assert who_leads(one.engine, PLACE) == ""
    assert two.leader.lead()
    one.leader.release()  # it is not its own any more, so nothing happens
    assert who_leads(one.engine, PLACE) == "two"


def test_a_lease_of_an_earlier_boot_of_the_host_has_ended(fresh_database: Callable[[str], str]) -> None:
    """SQLite alone: the file's host counts from its boot."""
    url = fresh_database("sqlite")
    late, early = HandClock(), HandClock()
    early.at_s = 5.0
    one, two = Daemon(url, "one", late, boot_id="before"), Daemon(url, "two", early, boot_id="after")
    assert one.leader.lead()
    assert two.leader.lead()
    one.close()
    two.close()


def test_a_clock_of_the_host_that_steps_moves_no_lease(make: MakeDaemon, clock: HandClock) -> None:
    """Only its monotonic clock, and the server's, are read."""
    one, two = make("one"), make("two")
    assert one.leader.lead()
    clock.now = lambda: clock.__class__().now().replace(year=2040)  # type: ignore[method-assign]
    assert not two.leader.lead()
    assert one.leader.lead()


def test_a_database_that_is_away_leaves_what_is_left(make: MakeDaemon, clock: HandClock) -> None:
    one = make("one")
    assert one.leader.lead()
    with one.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE daemon_lease RENAME TO away")
    with pytest.raises(Exception, match="daemon_lease"):
        one.leader.lead()
    assert one.leader.left_s() == 60
    with one.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO daemon_lease")


STOPPED_IN_A_TRANSACTION = """
import os, signal, sys
from fleetctl.accounting.database import database_url, open_database
from fleetctl.clock import SystemClock
from fleetctl.recovery.lease import Leader, Place
engine = open_database(database_url({}, sys.argv[1]))
leader = Leader(engine, Place("c", "user me"), "stopped", SystemClock(), boot_id="boot", ttl_s=1.0, margin_s=0.1)
assert leader.lead()
with engine.begin() as connection:
    leader.require(connection)
    print("in it", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.exec_driver_sql("UPDATE daemon_lease SET holder = 'stopped', token = 77")
"""


def test_a_leader_stopped_in_the_middle_of_a_transaction_keeps_others_out_for_a_while_only(
    fresh_database: Callable[[str], str],
) -> None:
    """PostgreSQL ends its transaction; nothing of it is done when it wakes."""
    url = fresh_database("postgres")
    argv = [sys.executable, "-c", STOPPED_IN_A_TRANSACTION, url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "in it\n"
        other = Daemon(url, "other", HandClock())
        tries: list[str] = []

        def leads() -> bool:
            try:
                return other.leader.lead()
            except DatabaseError as error:
                tries.append(error.message)
                return False

        wait_until(leads, "the other one leads")
        assert any("is locked" in each for each in tries)
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait(30) != 0
    assert who_leads(other.engine, PLACE) == "other"
    assert other.rows("SELECT token FROM daemon_lease") == [(2,)]
    other.close()


def test_a_boot_has_a_name() -> None:
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()


RACER = """
import sys
from fleetctl.accounting.database import database_url, open_database
from fleetctl.clock import SystemClock
from fleetctl.recovery.lease import Leader, Place
leader = Leader(
    open_database(database_url({}, sys.argv[1])), Place("c", "user me"), sys.argv[2], SystemClock(), boot_id="boot"
)
sys.stdin.readline()
print(leader.lead(), flush=True)
"""


def test_of_many_that_ask_at_once_one_leads(database: str) -> None:
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, database, f"d{number}"], stdin=pipe, stdout=pipe, text=True)
        for number in range(4)
    ]
    said = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        said.append(racer.communicate(timeout=60)[0].strip())
    assert sorted(said) == ["False", "False", "False", "True"]


def test_a_read_only_engine_tells_who_leads(make: MakeDaemon, database: str) -> None:
    one = make("one")
    assert one.leader.lead()
    reader = open_database(database_url({}, database), read_only=True)
    assert who_leads(reader, PLACE) == "one"
    assert Leader(reader, PLACE, "reader", one.clock, boot_id="boot").left_s() == 0
    reader.dispose()
