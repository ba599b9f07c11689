# shellcheck shell=bash
# What those share that measure a plan of berth bench in a bed: bed, images, network, pcocc,
# upstream/bed. Sourced in the root of the repository. 'begin' is first; from 'bring_up' on the
# bed belongs to this: the end, also that by a signal, brings the records back and takes it down.

bed=$PWD/test/bed/bed

# begin PROGRAM NAME [--out FILE] [ARGUMENT...]: records go to $records; $arguments are the rest.
begin() {
	program=$1
	records=bench/results/$(date -u +%Y-%m-%dT%H%M%SZ)-$2.jsonl
	shift 2
	if [[ ${1:-} == --out ]]; then
		[[ $# -ge 2 ]] || { say "say after --out which file records are for"; exit 64; }
		records=$2
		shift 2
	fi
	# shellcheck disable=SC2034 # for who sources this
	arguments=("$@")
	mine=no measuring='' ended=''
	folders=() # removed at the end
	trap finish EXIT
	trap 'interrupted 130' INT
	trap 'interrupted 143' TERM
}

say() { echo "$program: $*" >&2; }

# need HOW FILE...: what is missing would be missing in the records, too.
need() {
	local how=$1 file
	shift
	for file; do
		[[ -e $file ]] || { say "there is no $file: $how"; exit 1; }
	done
}

# on_hosts PLAN: where hosts have it, if it is a file of this repository.
on_hosts() {
	case $1 in
	/*) echo "$1" ;;
	*/*) echo "/srv/berth/$1" ;;
	*) echo "$1" ;;
	esac
}

# bring_up NODES: a bed that is up belongs to this, whatever came meanwhile. Records that
# there are already go on in it.
bring_up() {
	trap 'ended=130' INT
	trap 'ended=143' TERM
	"$bed" up "$1"
	mine=yes
	trap 'interrupted 130' INT
	trap 'interrupted 143' TERM
	[[ -z $ended ]] || exit "$ended"
	# The file is alice's, whoever writes to it.
	"$bed" run --user alice login sh -c 'cat >records.jsonl' < <([[ ! -s $records ]] || cat "$records")
}

# measure COMMAND...: a signal ends that first.
measure() {
	"$@" &
	measuring=$!
	wait "$measuring"
	measuring=
}

# interrupted CODE: what is being measured ends first, so that its records are whole.
interrupted() {
	[[ -z $measuring ]] || {
		kill "$measuring" 2>/dev/null || :
		wait "$measuring" || :
	}
	exit "$1"
}

# end_beside ends what runs beside the bed: who has something there has a function of this name.
end_beside() { :; }

finish() {
	trap : INT TERM # one more would leave the bed behind
	if [[ $mine == yes ]]; then
		# First as a whole, so that records that are missing leave no empty file.
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
