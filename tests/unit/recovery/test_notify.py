"""Which notices are worth sending, how often, and what stands in them."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from fleetctl.errors import ProcessTimeout, UsageError
from fleetctl.recovery import deliver, notify
from fleetctl.recovery.model import Action, Deed, Done, Outcome
from fleetctl.recovery.notify import Channel, Notice, Sent, Teller, Way
from tests.unit.clocks import START

TELL = Action(Deed.TELL, "r-1", "c/7/0", "it was held three times", "held", evidence=("log: loss is nan",))


def done(deed: Deed = Deed.TELL, outcome: Outcome = Outcome.DONE, **more: object) -> Done:
    return Done(Action(deed, "r-1", "c/7/0", "why", "rule"), START, outcome)


@pytest.mark.parametrize(
    ("deed", "outcome", "told"),
    [
        (Deed.TELL, Outcome.DONE, True),
        (Deed.HOLD, Outcome.DONE, True),
        (Deed.HOLD, Outcome.REFUSED, True),
        (Deed.PAUSE, Outcome.DONE, True),
        (Deed.DRAIN, Outcome.DONE, True),
        (Deed.REQUEUE, Outcome.DONE, False),
        (Deed.REQUEUE, Outcome.FAILED, True),
        (Deed.TELL, Outcome.CHANGED, False),
        (Deed.TELL, Outcome.OPEN, False),
    ],
)
def test_people_hear_of_what_needs_them(deed: Deed, outcome: Outcome, told: bool) -> None:
    assert bool(notify.notices([done(deed, outcome)], "c")) is told


def test_a_notice_says_what_why_and_on_what_evidence() -> None:
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    assert one.subject == "fleetctl: look at r-1"
    assert one.as_json()["why"] == "it was held three times"
    assert one.as_json()["evidence"] == ["log: loss is nan"]


def test_the_same_notice_is_fresh_again_after_a_day_and_also_once_the_clock_stepped_back() -> None:
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    notes = {notify.name_of(one.identity): notify.noted(Sent(one.identity, ""), "", START)}
    assert notify.fresh([one], notes, START + timedelta(hours=23)) == ()
    assert notify.fresh([one], notes, START + timedelta(hours=25)) == (one,)
    assert notify.fresh([one], notes, START - timedelta(hours=25)) == (one,)


def test_a_failed_delivery_is_tried_five_times() -> None:
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    name, note = notify.name_of(one.identity), ""
    for _ in range(5):
        assert notify.fresh([one], {name: note}, START) == (one,)
        note = notify.noted(Sent(one.identity, "no route"), note, START)
    assert notify.fresh([one], {name: note}, START) == ()


@pytest.mark.parametrize("note", ["", "sent", "nonsense", "sent yesterday", "failed x y", "failed 5"])
def test_a_damaged_note_silences_nobody(note: str) -> None:
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    assert notify.fresh([one], {notify.name_of(one.identity): note}, START) == (one,)


def test_old_notes_are_forgotten_and_only_ours() -> None:
    notes = {"told a": f"sent {START.isoformat()}", "told b": "rubbish", "suspect r-1": "x"}
    assert notify.stale(notes, START) == {"told b": ""}
    assert notify.stale(notes, START + timedelta(days=2)) == {"told a": "", "told b": ""}


def test_channels_are_read() -> None:
    said = ["webhook:https://x/y?z=1:2", "mail:me@x", "command:/bin/tell"]
    assert notify.channels_of(said) == (
        Channel(Way.WEBHOOK, "https://x/y?z=1:2"),
        Channel(Way.MAIL, "me@x"),
        Channel(Way.COMMAND, "/bin/tell"),
    )


@pytest.mark.parametrize("said", ["", "pager:1", "mail:", "webhook:file:///etc/passwd", "webhook:ftp://x"])
def test_what_is_no_channel_is_refused(said: str) -> None:
    with pytest.raises(UsageError):
        notify.channels_of([said])


def test_a_refusal_does_not_print_the_secret_part_of_a_webhook() -> None:
    with pytest.raises(UsageError) as error:
        notify.channels_of(["hook:https://chat.example/services/T0/B0/verysecret"])
    assert "verysecret" not in error.value.message


def test_telling_never_waits_for_a_delivery() -> None:
    gate, sent = threading.Event(), list[Notice]()

    def slow(channel: Channel, notice: Notice) -> str:
        assert gate.wait(10)
        sent.append(notice)
        return ""

    teller = Teller([Channel(Way.MAIL, "me")], slow)
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    assert teller.tell(one)
    assert teller.tell(one), "it is under way: it is not queued twice"
    assert teller.results() == ()
    gate.set()
    assert teller.close(10) == (Sent(one.identity, ""),)
    assert sent == [one]


def test_what_goes_wrong_in_a_delivery_is_a_result() -> None:
    def killed(channel: Channel, notice: Notice) -> str:
        raise ProcessTimeout("it did not end within 30 s")

    teller = Teller([Channel(Way.WEBHOOK, "https://x/secret")], killed)
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    assert teller.tell(one)
    (result,) = teller.close(10)
    assert "did not end" in result.trouble
    assert "secret" not in result.trouble


def test_without_channels_nothing_is_queued() -> None:
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    assert not Teller([], notify.deliver).tell(one)


def test_a_mail_has_one_line_of_subject_whatever_a_run_is_called() -> None:
    (one,) = notify.notices([Done(TELL, START, Outcome.DONE)], "c")
    raw = one.as_json() | {"subject": "a\r\nBcc: everybody@x"}
    mail = deliver.message("me@x", raw)
    assert mail["Bcc"] is None
    assert mail["Subject"] == "a Bcc: everybody@x"
    assert "it was held three times" in mail.get_content()
