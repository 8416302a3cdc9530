#!/bin/sh
# Before slurmd starts (ExecStartPre= of its unit): once after each boot, as root.
run=${0%/*}/run.sh
if [ -r "$run" ]; then exec /bin/sh "$run" boot "$@"; fi
echo "fleetctl: no node check: $run is missing" >&2
