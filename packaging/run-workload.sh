#!/bin/sh
# Runs a script that was written for KSI: run-workload.sh SCRIPT [SHARED_DIR]
# berth is beside this file, or in PATH: sbatch runs a copy of this file, and bash gives a
# script that it finds in PATH no directory. A folder named berth may be where it is called.
berth=$(dirname "$(readlink -f "$0")")/berth
[ -f "$berth" ] && [ -x "$berth" ] || berth=$(command -v berth) || {
  echo "run-workload.sh: berth is neither beside this file nor in PATH; add its directory to PATH" >&2
  exit 69
}
exec "$berth" run-workload "$@"
