# shellcheck shell=bash
# Groups of cases run on separate hosts, in the background. The exit code of a group
# is the number of its failed cases.

busy=0 known=' '
declare -A places=() # what a group takes, of those that may run abreast
# Settings of a group: the places that it takes, the mode of its runs (local, which is
# outside of Slurm, or step), the folder that hosts see as /srv/berth, and the settings of its
# bed.
takes=1 mode=step checkout=''
export PROCTRACK=cgroup TASK=cgroup CPUS=2 MEM=2000

# group NAME NODES CASE... starts the wanted cases once there is a free place.
group() {
	local name=$1 nodes=$2 wants=() case
	shift 2
	known+="$name $* "
	[[ $without != *" $name "* && ${nodes_wanted:-$nodes} == "$nodes" ]] || return 0
	for case; do
		[[ $wanted != "  " && $wanted != *" $name "* && $wanted != *" $case "* ]] || wants+=("$case")
	done
	[[ ${#wants[@]} -gt 0 ]] || return 0
	while ((takes > 0 && busy + takes > abreast)); do collect; done
	run_group "${wants[@]}" &
	places[$!]=$takes
	((busy += takes))
}

run_group() { # CASE...
	local began=$SECONDS mine=yes numbers case
	fails=0
	# Take only this group's bed down: another test may have a bed of that name.
	trap 'end_jobs; [[ $mine == no ]] || "$bed" down >/dev/null 2>&1' EXIT
	leave_on_signals
	export BED_NAME=$BED_NAME-$name
	out+=/$name
	mkdir "$out"
	BED_BIND="$stage:/srv/ends${runtimes:+ $runtimes:/srv/runtimes}${checkout:+ $checkout:/srv/berth}" "$bed" up "$nodes" || {
		mine=no
		exit 1
	}
	numbers=$(numbers_of_bed)
	for case; do case_ "$case"; done
	"$bed" down --check || fails=$((fails + 1))
	mine=no
	# shellcheck disable=SC2086
	machine_is_clean $numbers || fails=$((fails + 1))
	echo "     $name: $# cases in $((SECONDS - began)) s, $fails failed"
	exit "$fails"
}

# collect waits for the end of a group.
collect() {
	local pid code
	wait -n -p pid
	code=$?
	[[ -n ${pid:-} ]] || return
	((busy -= places[$pid]))
	unset "places[$pid]"
	# A larger code stands for a signal.
	((fails += code < 126 ? code : 1))
}

finish() {
	local case
	while [[ ${#places[@]} -gt 0 ]]; do collect; done
	for case in $wanted; do
		[[ $known == *" $case "* ]] || {
			echo "there is no case $case" >&2
			fails=$((fails + 1))
		}
	done
	echo "$fails failed"
	exit $((fails > 0))
}

end_jobs() {
	jobs -p | xargs -r kill 2>/dev/null
	wait
}

# leave_on_signals ignores further signals, which groups and parents may both send, so
# that they do not interrupt the cleanup.
leave_on_signals() { trap 'trap "" INT TERM HUP; exit 143' INT TERM HUP; }
