# shellcheck shell=bash
# Results of cases that are kept: a line for each case in the file of -r.

# machine prints what the results depend on.
machine() {
	local name
	name=$(. /etc/os-release && echo "$PRETTY_NAME")
	echo "$name, Linux $(uname -r), $(nproc) processors of type $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(awk '/^MemTotal/ {printf "%.0f", $2 / 1048576}' /proc/meminfo) GiB, Slurm $(slurmctld -V | cut -d' ' -f2)"
}

# keep CASE RESULT SECONDS appends a line to the file, if there is one.
keep() {
	[[ -n $kept ]] || return 0
	[[ -s $kept ]] || echo "# $(machine)" >"$kept"
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%FT%H:%M)" "$commit" "$(cut -d' ' -f1 /proc/loadavg)" "$proctrack" "$@" >>"$kept"
}

# table FILE... prints the last result of each case as a table for docs/site-cases.md.
table() {
	sed -n 's/^# //p' "$@" | sort -u
	printf '%s\n' '' '| case | ProctrackType | result | seconds | commit | UTC | load |' '| --- | --- | --- | --- | --- | --- | --- |'
	grep -hv '^#' "$@" | awk -F'\t' '
		{ key = $4 FS $5; if (!(key in line)) order[++n] = key
		  line[key] = sprintf("| `%s` | %s | %s | %d | %s | %s | %s |", $5, $4, $6, $7, $2, $1, $3) }
		END { for (i = 1; i <= n; i++) print line[order[i]] }'
}
