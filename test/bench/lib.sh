# shellcheck shell=bash
# Common functions of the scripts that measure a plan of berth bench in a bed: bed, images,
# network, pcocc, upstream/bed. They source it in the root of the repository. 'begin' comes
# first. After 'bring_up', the end of the script, even by a signal, copies the records back
# and takes the bed down.

bed=$PWD/test/bed/bed

# begin PROGRAM NAME [--out FILE] [ARGUMENT...] sets $records to the file of records and
# $arguments to the rest.
begin() {
	program=$1
	records=bench/results/$(date -u +%Y-%m-%dT%H%M%SZ)-$2.jsonl
	shift 2
	if [[ ${1:-} == --out ]]; then
		[[ $# -ge 2 ]] || { say "say after --out which file records are for"; exit 64; }
		records=$2
		shift 2
	fi
	# shellcheck disable=SC2034 # used by the scripts that source this
	arguments=("$@")
	mine=no measuring='' ended=''
	folders=() # removed at the end
	trap finish EXIT
	trap 'interrupted 130' INT
	trap 'interrupted 143' TERM
}

say() { echo "$program: $*" >&2; }

# need HOW FILE... fails if a file is missing, because the records would lack its case.
need() {
	local how=$1 file
	shift
	for file; do
		[[ -e $file ]] || { say "there is no $file: $how"; exit 1; }
	done
}

# on_hosts PLAN prints the path of a plan on the hosts, if it is a file of this repository.
on_hosts() {
	case $1 in
	/*) echo "$1" ;;
	*/*) echo "/srv/berth/$1" ;;
	*) echo "$1" ;;
	esac
}

# bring_up NODES starts the bed, which the script owns from then on, and copies existing
# records into it.
bring_up() {
	trap 'ended=130' INT
	trap 'ended=143' TERM
	"$bed" up "$1"
	mine=yes
	trap 'interrupted 130' INT
	trap 'interrupted 143' TERM
	[[ -z $ended ]] || exit "$ended"
	# The file belongs to alice, although root may write to it.
	"$bed" run --user alice login sh -c 'cat >records.jsonl' < <([[ ! -s $records ]] || cat "$records")
}

# measure COMMAND... runs the command; a signal ends the command first.
measure() {
	"$@" &
	measuring=$!
	wait "$measuring"
	measuring=
}

# interrupted CODE waits for the running measurement to end, so that its records are
# complete.
interrupted() {
	[[ -z $measuring ]] || {
		kill "$measuring" 2>/dev/null || :
		wait "$measuring" || :
	}
	exit "$1"
}

# end_beside ends what runs beside the bed. Scripts with such processes redefine it.
end_beside() { :; }

finish() {
	trap : INT TERM # one more would leave the bed behind
	if [[ $mine == yes ]]; then
		# Copy to another name first, so that missing records leave no empty file.
		if "$bed" run --user alice login cat records.jsonl >"$records.new" 2>/dev/null && [[ -s $records.new ]]; then
			mv "$records.new" "$records"
			say "records: $records"
		fi
		rm -f "$records.new"
		end_beside
		"$bed" down
		wait
	fi
	rm -rf "${folders[@]}"
}
