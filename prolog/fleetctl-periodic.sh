#!/bin/sh
# HealthCheckProgram= in slurm.conf: every HealthCheckInterval, on each node, as root.
run=${0%/*}/run.sh
if [ -r "$run" ]; then exec /bin/sh "$run" periodic "$@"; fi
echo "fleetctl: no node check: $run is missing" >&2
