"""The switch that stops the daemon where even the database is away: a file that a person makes."""

from __future__ import annotations

from pathlib import Path

STOP = "FLEETCTL_DAEMON_STOP"  # names the file: while it is there, nothing is done


def stopped(stop_file: Path | None) -> str:
    """Why nothing may be done; "": the file does not forbid it. What cannot be looked at forbids."""
    if stop_file is None:
        return ""
    try:
        stop_file.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"whether {stop_file} is there cannot be told: {error.strerror}"
    return f"{stop_file} is there"
