#!/bin/sh
# Run one phase of the node checks: run.sh PHASE. Its folder is made by `fleetctl node install`, which tries all this by
# run.sh PHASE --version.
# No PATH is assumed. Exit status 1 only for a fault that was measured; what is wrong with the checks themselves is said
# in one line on stderr, and jobs go on.

complain() {
  echo "fleetctl: no node check: $1" >&2
  exit 0
}

# The real folder: an install may switch `current` while we run.
cd -P -- "${0%/*}/.." 2>/dev/null || complain "${0%/*}/.. cannot be opened"
folder=$PWD
[ -r "$folder/python" ] || complain "$folder/python is missing: run fleetctl node install"
read -r python <"$folder/python"
[ -x "$python" ] || complain "there is no program ${python:-in $folder/python}"

# Slurm runs this as root: nobody else may have had a hand in it. A link inside the folder counts as writable.
foreign=$(/usr/bin/find -H "$folder" "$python" \( ! -user 0 -o -perm /022 \) -print -quit) ||
  complain "/usr/bin/find could not look through $folder"
[ -z "$foreign" ] || complain "others can change $foreign"

phase=$1
[ "${2-}" != --version ] || phase=--version

umask 022
"$python" -I -S "$folder" "$phase"
status=$?
[ "$status" -ne 10 ] || exit 1
[ "$status" -eq 0 ] || complain "$python ended with status $status"
exit 0
