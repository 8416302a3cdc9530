"""What the scripts start on a node: `PYTHON -I -S FOLDER PHASE`. It becomes the folder's `__main__.py`.

It ends with 10 only when a fault was measured. A mistake of our own, an import included, lets jobs go on.
With `--version` for a phase it loads what phases need and says its version: so an install tries it.
"""

import gc
import os
import sys

gc.disable()  # it ends within seconds, and the collector would copy the pages that its children share with it
_FAULT = 10  # an interpreter that cannot start, a signal, a crash: none of them ends with this


def _run():
    try:
        from fleetctl.health.__main__ import main

        if sys.argv[1:] == ["--version"]:
            return _say_version()
        beside = os.path.dirname(os.path.abspath(__file__))
        return _FAULT if main(sys.argv[1:], os.environ, beside) == 1 else 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, jobs go on
        sys.stderr.write(f"fleetctl: no node check: {type(error).__name__}: {error}\n")
        return 0


def _say_version():
    import pynvml  # noqa: F401 - all of these only have to load

    from fleetctl.health import check, job_end, nvml, periodic, prolog  # noqa: F401
    from fleetctl.version import VERSION

    sys.stdout.write(f"fleetctl {VERSION}\n")
    return 0


_status = _run()
try:
    sys.stdout.flush()
    sys.stderr.flush()
finally:
    os._exit(_status)  # nothing is left to do, and taking the interpreter apart costs almost what a bare start does
