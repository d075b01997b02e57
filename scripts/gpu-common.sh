# shellcheck shell=bash
# Sourced by the scripts that run a built tree on a machine with a GPU: times, and JSON without any other program.

now() { date +%s%N; }

# The comment at a script's top, which is its usage.
usage() { sed -n '2,${/^#/!q; s/^# \{0,1\}//; p}' "$0"; }

# Standard input as the inside of a JSON string: one line, its last 2,000 characters.
escaped() { tr -s '\n\t\r' ' ' | tr -d '\000-\037' | tail -c 2000 | sed 's/\\/\\\\/g; s/"/\\"/g'; }

join() { local IFS=,; printf '%s' "$*"; }

gpu_name() { nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1 | escaped; }
