#!/bin/sh
# Runs a script that was written for KSI: run-workload.sh SCRIPT [SHARED_DIR]
# berth is beside this file, or in PATH: sbatch runs a copy of this file.
berth=$(dirname "$(readlink -f "$0")")/berth
[ -x "$berth" ] || berth=$(command -v berth) || {
  echo "run-workload.sh: berth is neither beside this file nor in PATH; add its directory to PATH" >&2
  exit 69
}
exec "$berth" run-workload "$@"
