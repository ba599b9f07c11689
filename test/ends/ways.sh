# shellcheck shell=bash
# Every way to end a run (rows), by its launcher (columns). A cell is LAUNCHER/WAY;
# the pod of ways.yaml writes its result.

launchers=(srun srun-X srun-pty salloc submit script script-srun)
every_way=(ctrl-c ctrl-c-twice close-terminal
	scancel scancel-INT scancel-TERM scancel-HUP scancel-batch scancel-full
	kill-TERM-srun kill-HUP-srun kill-QUIT-srun kill-KILL-srun
	kill-TERM-berth kill-HUP-berth kill-QUIT-berth kill-KILL-berth
	time-limit)

# ways_to_end tries a cell of each kind of ending: a terminal, scancel, a signal to berth
# and to srun. The case time_limit has the rest. test/ends/ways tries all cells.
ways_to_end() {
	local cells=(salloc/ctrl-c srun-X/ctrl-c srun-pty/ctrl-c
		salloc/close-terminal script/scancel submit/scancel
		salloc/kill-TERM-berth srun/kill-QUIT-berth srun/kill-QUIT-srun)
	run_cells 3 "${cells[@]}" >"$out/ways" || fail "$(grep -v "^[a-z]* [^:]*: " "$out/ways")"
}

every_cell() {
	local launcher way
	for way in "${every_way[@]}"; do
		for launcher in "${launchers[@]}"; do
			# The terminal of sbatch is not the job's, and there is no srun.
			case $launcher/$way in
			script-srun/scancel | script-srun/time-limit) ;;
			script-srun/*) continue ;;
			esac
			case $launcher/$way in submit/*srun | script/*srun | submit/ctrl* | script/ctrl* | submit/close* | script/close*) continue ;; esac
			echo "$launcher/$way"
		done
	done
}

# run_cells NODES CELL... runs cells, each worker on one node.
run_cells() {
	local count=$1 worker pids=()
	shift
	"$bed" run --user alice login mkdir -p ways
	rm -f "$out"/*.cell
	for ((worker = 0; worker < count; worker++)); do
		(
			trap - EXIT
			for ((i = worker + 1; i <= $#; i += count)); do
				result=$(run_cell "n$((worker + 1))" "${!i}")
				echo "$result" >"$out/${!i/\//+}.cell"
				echo "$PROCTRACK ${!i}: $result"
			done
		) &
		pids+=($!)
	done
	wait "${pids[@]}"
	"$bed" run --user alice login rm -rf ways
	for ((worker = 1; worker <= count; worker++)); do "$bed" run --user alice "n$worker" env PATH=/srv/ends/dist/bin:/usr/bin:/bin berth cleanup; done
	local left
	left=$(check) || {
		echo "left behind:" && head -n 20 <<<"$left"
		return 1
	}
	check_cells "$@"
}

# run_cell NODE LAUNCHER/WAY prints its result.
run_cell() {
	local node=$1 launcher=${2%/*} way=${2#*/} name=${2/\//-} command options said file log pid job keys
	failed=no
	log=$out/$name.log
	file=/var/tmp/berth-bed/$BED_NAME/home/alice/ways/$name
	"$bed" run --user alice login sh -c "sed 's/NAME/$name/' $here/ways.yaml >ways/$name.yaml"
	options="-N1 -w $node --mem=1500 -J $name"
	[[ $way != time-limit ]] || options+=" --time=1"
	command="berth run -f ways/$name.yaml --image $image"
	case $launcher in
	srun) command="srun $options $command" ;;
	srun-X) command="srun -X $options $command" ;;
	srun-pty) command="srun --pty $options $command" ;;
	salloc) command="salloc $options $command" ;;
	submit) command="berth submit --wait -o ways/$name.out $options ${command#berth run}" ;;
	script) command="sbatch -W -o ways/$name.out $options --wrap '$command'" ;;
	script-srun) command="sbatch -W -o ways/$name.out $options --wrap 'srun $command; echo done'" ;;
	esac
	mkfifo "$out/$name.keys" && exec {keys}<>"$out/$name.keys" || return 1
	timeout -k 1 300 "$bed" run --user alice login env PATH=/srv/ends/dist/bin:/usr/bin:/bin script -qec "$command" /dev/null \
		<"$out/$name.keys" >"$log" 2>&1 &
	pid=$!
	poll 100 grep -qs started "$file" || {
		echo "not started: $(tail -n 3 "$log" | tr '\r\n' '  ')"
		end_cell
		return
	}
	job=$("$bed" run ctl squeue -h -n "$name" -o %A)
	act "$way"
	if ! poll "$(timeout_for "$launcher/$way")" over; then
		said=" goes on"
	else
		said=$(describe "$file")
	fi
	cat "$log" "/var/tmp/berth-bed/$BED_NAME/home/alice/ways/$name.out" 2>/dev/null | tr -d '\r' |
		sed -n 's/.*: the workload has \(.*\) to end; .*/\1/p' | tail -n 1 >"$out/${2/\//+}.has"
	end_cell
	echo "${said# }"
}

# over: the command, the job and the pod have ended. Under linuxproc a pod can outlive its
# job by the seconds that a cell measures.
over() {
	! kill -0 "$pid" 2>/dev/null &&
		[[ -z $("$bed" run ctl squeue -h -j "$job" -o %A 2>/dev/null) ]] &&
		! "$bed" run "$node" pgrep -f "exec >>/said/$name" >/dev/null
}

timeout_for() {
	case $1 in
	*/time-limit) echo 200 ;;
	script*) echo 60 ;; # sbatch -W notices the end late
	*) echo 25 ;;
	esac
}

end_cell() {
	"$bed" run --user alice login scancel -n "$name"
	failed=no
	poll 30 eval '[[ -z $("$bed" run ctl squeue -h -n "$name" -o %A) ]]'
	kill "$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
	exec {keys}>&-
	rm "$out/$name.keys"
}

act() { # WAY
	case $1 in
	ctrl-c) printf '\003' >&"$keys" ;;
	ctrl-c-twice)
		printf '\003' >&"$keys"
		sleep 0.3 # within the second in which srun takes it for one more
		printf '\003' >&"$keys"
		;;
	close-terminal) "$bed" run login pkill -KILL -f "^script .*ways/$name[.]yaml" ;;
	scancel) cancel ;;
	scancel-INT | scancel-TERM | scancel-HUP) cancel --signal="${1#scancel-}" ;;
	scancel-batch | scancel-full) cancel "--${1#scancel-}" ;;
	kill-*-srun) "$bed" run login sh -c "kill -$(cut -d- -f2 <<<"$1") \$(pgrep -of '^[^ ]*srun .*ways/$name[.]yaml')" ;;
	kill-*-berth)
		local host=$node of=
		# The login host has the processes of other cells, too.
		[[ $launcher != salloc ]] || host=login of=".*$name"
		"$bed" run "$host" sh -c "kill -$(cut -d- -f2 <<<"$1") \$(pgrep -of '^[^ ]*berth run $of')"
		;;
	esac
}

cancel() { "$bed" run --user alice login scancel "$@" "$job"; }

# describe FILE prints what the pod noticed, in order.
describe() {
	local seen
	seen=$(sed -n '/^started/,$p' "$1" | grep -E '^[A-Z]+$' | uniq | xargs)
	if [[ " $seen " != *" TERM "* ]]; then
		echo "killed at once${seen:+ ($seen)}"
		return
	fi
	echo "$seen $(grep -E '^[0-9.]+$' "$1" | awk 'NR == 1 { first = $1 } { last = $1 } END { printf "%.1f s", last - first }')"
}

# expected LAUNCHER/WAY: "KillWait", "its own grace", "5 s", "killed at once" or "goes on".
# Slurm may kill at once only where srun itself is signalled, a closed terminal included,
# and where the only task of a step is killed. The job has no time limit and goes on after
# SIGTERM from scancel or kill, so the pod has its own grace period.
expected() {
	case $1 in
	*/scancel-TERM | */kill-TERM-berth) echo "its own grace" ;;
	# A step that berth has started gets SIGTERM whatever signal berth gets. After Ctrl-C,
	# it gets a second one after 5 s, and the pod may have SIGTERM only some time after the
	# first one.
	salloc/ctrl-c*) echo "5 s" ;;
	salloc/kill-HUP-berth | submit/kill-HUP-berth | script/kill-HUP-berth) echo "its own grace" ;;
	salloc/kill-QUIT-berth | submit/kill-QUIT-berth | script/kill-QUIT-berth) echo "its own grace" ;;
	*/kill-*-srun | srun*/close-terminal | srun/ctrl-c-twice | srun-X/ctrl-c-twice) echo "killed at once" ;;
	salloc/kill-KILL-berth | submit/kill-KILL-berth | script/kill-KILL-berth) echo KillWait ;;
	*/kill-KILL-berth) echo "killed at once" ;;
	# The first Ctrl-C only makes srun print the state of its tasks. Without a batch
	# script, --batch has no effect.
	srun/ctrl-c | s[ra]*/scancel-batch) echo "goes on" ;;
	*) echo KillWait ;;
	esac
}

# check_cells lists the cells with another result than expected.
check_cells() {
	local each got has want wrong=0
	for each; do
		got=$(cat "$out/${each/\//+}.cell" 2>/dev/null) has=$(cat "$out/${each/\//+}.has" 2>/dev/null) want=$(expected "$each")
		case $want in
		KillWait) [[ $got == *TERM\ [1-9]* && $has != *pods* ]] ;;
		# More than KillWait, and what berth said.
		"its own grace") [[ $got =~ TERM\ ([4-9]|[1-9][0-9])[.] && $has == "as long as its pods ask for" ]] ;;
		"5 s") [[ $got == *TERM\ [1-9]* && $has == "as long as its pods ask for" ]] ;;
		# A second Ctrl-C of srun may come after its pods have had SIGTERM.
		"killed at once") [[ $got == "$want"* || $each == *twice && $got == *TERM* ]] ;;
		*) [[ $got == "$want" ]] ;;
		esac || {
			echo "FAILED: $PROCTRACK $each: $got${has:+, and has $has}; want $want"
			wrong=1
		}
	done
	return $wrong
}

write_table() {
	local way launcher
	echo
	printf '|'; printf ' %s |' "$PROCTRACK" "${launchers[@]}"
	echo
	for way in "${every_way[@]}"; do
		printf '| %s |' "$way"
		for launcher in "${launchers[@]}"; do printf ' %s |' "$(cat "$out/$launcher+$way.cell" 2>/dev/null)"; done
		echo
	done
}
