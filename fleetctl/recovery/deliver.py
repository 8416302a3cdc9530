"""One notice, by HTTP or by mail: run as `python -I -m fleetctl.recovery.deliver`, which reads it from stdin.

Whoever starts it kills it when it takes too long. It prints one line about what went wrong, without the target.
"""

from __future__ import annotations

import json
import os
import sys
from email.message import EmailMessage
from typing import Any

from fleetctl import process
from fleetctl.errors import FleetctlError, ProgramMissing

_SENDMAIL = "/usr/sbin/sendmail"  # where every mailer puts its own (LSB, sendmail.8)
_HTTP_S = 20.0  # of one wait for the server
_MAIL_S = 25.0


def post(url: str, notice: dict[str, Any]) -> None:
    """`text` beside our own keys: what chat services show of a webhook's JSON.

    :raises OSError: it was not taken.
    """
    import urllib.request

    text = "\n".join([notice["subject"], notice["why"], *notice["evidence"]])
    body = json.dumps({"text": text, **notice}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=_HTTP_S) as answer:
        answer.read(1 << 16)


def message(address: str, notice: dict[str, Any]) -> EmailMessage:
    """A mail of plain text. Pure."""
    mail = EmailMessage()
    mail["To"] = address
    mail["Subject"] = " ".join(str(notice["subject"]).split())[:200]
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's holiday answers it
    rows = [("cluster", notice["cluster"]), ("run", notice["run_id"]), ("nodes", ", ".join(notice["nodes"]))]
    rows += [("time", notice["time"]), ("done", notice["deed"]), ("outcome", notice["outcome"])]
    facts = [f"{name}: {value}" for name, value in rows if value]
    lines = [notice["why"], "", *facts, "", *notice["evidence"]]
    mail.set_content("\n".join(map(str, lines)) + "\n", charset="utf-8")
    return mail


def send(address: str, notice: dict[str, Any]) -> None:
    """By the machine's mailer, else by SMTP to this host.

    :raises OSError, FleetctlError: it was not taken.
    """
    mail = message(address, notice)
    if os.access(_SENDMAIL, os.X_OK):
        try:
            done = process.run([_SENDMAIL, "-t", "-i"], timeout_s=_MAIL_S, stdin=mail.as_string())
        except ProgramMissing as error:
            raise OSError(str(error)) from None
        if done.returncode:
            raise OSError(f"sendmail ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
        return
    import smtplib

    mail["From"] = f"fleetctl@{os.uname().nodename}"
    with smtplib.SMTP("localhost", timeout=_MAIL_S) as server:
        server.send_message(mail)


def main() -> int:
    raw = json.load(sys.stdin)
    try:
        (post if raw["way"] == "webhook" else send)(raw["target"], raw["notice"])
    except (OSError, FleetctlError, ValueError) as error:  # smtplib's and urllib's errors are OSErrors
        code = getattr(error, "code", "")
        print(f"{type(error).__name__} {code} {getattr(error, 'reason', error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
