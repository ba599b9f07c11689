# shellcheck shell=bash
# Functions for the scripts that create Slurm jobs as objects. They set kind, and may set namespace.
# They have a function fail.
namespace=default

# await SECONDS CMD...
await() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < deadline)) || fail "no success: $*"
		sleep 0.2
	done
}
# field OBJECT NAME prints a field of a status. is and contains compare it.
field() { kubectl get "$kind" -n "$namespace" "$1" -o "jsonpath={.status.$2}"; }
is() { [[ $(field "$1" "$2") == "$3" ]]; }
contains() { [[ $(field "$1" "$2") == *"$3"* ]]; }
