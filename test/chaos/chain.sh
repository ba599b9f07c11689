# shellcheck shell=bash
# Chains: runs that take one fault after the other, as long as they heal. Each fault is a
# round. The pods of the Job then make another set of answers, and new pods start, so the
# whole cluster has to work. Only the first and the last round wait for the start and the end
# of a run.

# Images of the registry on the login host, one for each pull of a chain.
chain_images=(1 2 3 4 5 6 7 8 9)

# start_registry serves the images. No two have a layer in common, except that of busybox. The
# process is root's, because 'bed check' reports the processes of users.
start_registry() {
	local each arguments=()
	cp test/images/out/bin/registry "$stage/" && cp test/images/out/docker/busybox.tar "$stage/images/pulled.tar" || exit 1
	for each in "${chain_images[@]}"; do arguments+=("team-$each/busybox:1.37=/srv/ends/images/pulled.tar"); done
	begin registry root login /srv/ends/registry -listen :5000 -layers 2 -bytes 2000000 "${arguments[@]}"
	says registry 'registry on'
	[[ $failed == no ]] || exit 1
}

# choose_chain SEED makes the choices that all rounds of a chain share.
choose_chain() {
	RANDOM=$1
	one_of 2 2 3 && nodes=$chosen
	one_of manifest command && form=$chosen
	one_of debug debug debug small && state=$chosen
}

# Kinds of processes that mostly end their run when they are killed.
final_kinds=(supervisor janitor init command-parent command)

# choose_link SEED PLACE makes the choices of a round. The first round of a chain hits a moment of
# the start. Only the last one hits a moment of the end, or kills a process of final_kinds. Rounds
# with consecutive seeds prefer the other kinds of processes in turn.
choose_link() {
	local wanted final
	RANDOM=$1
	one_of kill kill kill kill kill kill stop stop stop stop cut disk shm && fault=$chosen
	[[ $fault != disk || $state == small ]] || fault=kill
	one_of work work pods pods pull && moment=$chosen
	one_of 5 5 5 25 && outage=$chosen
	host=n$((RANDOM % nodes + 1)) number=$RANDOM
	shuffle_kinds
	one_of "${final_kinds[@]}" && final=$chosen
	without images
	[[ $2 == last || $fault != kill ]] || without "${final_kinds[@]}"
	wanted=$(printf '%s\n' "${order[@]}" | sort | sed -n "$(($1 % ${#order[@]} + 1))p")
	case $2 in
	first) moment=start && one_of images "$wanted" "$wanted" "$wanted" && wanted=$chosen ;;
	last) one_of end end end "$moment" && moment=$chosen && one_of "$final" "$wanted" && wanted=$chosen ;;
	esac
	[[ $wanted/$moment != runc/work ]] || moment=pods
	without "$wanted"
	order=("$wanted" "${order[@]}")
	case $moment in
	start) delay=$((RANDOM % 6000)) ;;
	work) delay=$((RANDOM % 2000)) ;;
	pods | pull) delay=$((RANDOM % 1500)) ;;
	end) delay=$((RANDOM % 600)) ;;
	esac
	[[ $wanted != images ]] || delay=$((delay / 10))
}

# without KIND... removes kinds from order.
without() {
	mapfile -t order < <(printf '%s\n' "${order[@]}" | grep -vxF "$(printf '%s\n' "$@")")
}

# strike_link injects the fault. A host with a process of the preferred kind is struck, if there
# is one.
strike_link() {
	local each preferred=${order[0]}
	case $fault/$preferred in
	*/runc | */images) ;;
	kill/* | stop/*)
		for each in "$host" n1 n2 n3; do
			"$bed" run "$each" /srv/ends/chaos/hit "$first_user" 0 0 "$preferred" >/dev/null && host=$each && break
		done
		;;
	esac
	strike
	case $fault in disk | shm) undo=(repair) ;; esac
}

# batch NAME PODS IMAGE creates a Job whose pods write files NAME.INDEX into the claim.
batch() {
	local each
	for each in n1 n2 n3; do
		sed "s|NAME|$1|; s|PODS|$2|; s|IMAGE|$3|" test/chaos/batch.yaml |
			"$bed" run --user alice "$each" sh -c 'for config in /dev/shm/berth-*/*/kubeconfig /srv/small/berth-*/*/kubeconfig; do
				[ ! -e "$config" ] || KUBECONFIG=$config exec timeout 20 /srv/ends/dist/libexec/berth/kubectl create --validate=false -f -; done; exit 1' >"$out/batch" 2>&1 && return
		! grep -q AlreadyExists "$out/batch" || return 0
		! ended a || return 1
	done
	return 1
}

# set_is_right SET reports whether each pod got all answers of the set from the right peer.
set_is_right() {
	local pod i answer
	for ((pod = 0; pod < nodes; pod++)); do [[ -e $claim/$pod.$1.done ]] || return 1; done
	for ((pod = 0; pod < nodes; pod++)); do
		for i in {1..12}; do
			read -r answer <"$claim/$pod.$1.$i" && [[ $answer == $(((pod + 1) % nodes)) ]] || return 1
		done
	done
}

batch_is_done() { # NAME PODS
	[[ $(compgen -G "$claim/$1.*" | wc -l) == "$2" ]]
}

pods_are_ready() { ended a || [[ $(compgen -G "$claim/*.ready" | wc -l) == "$nodes" ]]; }
set_has_begun() { ended a || compgen -G "$claim/*.$1.2" >/dev/null; }

# all_nodes_run reports whether each node of the run still has its supervisor.
all_nodes_run() {
	local each
	for ((each = 1; each <= nodes; each++)); do
		"$bed" run n$each pgrep -f '^[^ ]*berth run ' >/dev/null || return 1
	done
}

# link NUMBER SEED PLACE runs a round of a chain. It fails if the chain has to end.
link() {
	local k=$1 seed=$2 began=$SECONDS hit code=+ outcome message took load pods=0 picture=busybox:1.37 longest=120
	process=- undo=() mended= since=
	choose_link "$seed" "${3:-}"
	case $moment in
	start) poll 90 moment_comes && longest=180 ;; # a busy machine needs long for a cluster
	work) touch "$claim/go.$k" && poll 60 set_has_begun "$k" ;;
	end) touch "$claim/go.end" ;;
	pull) picture=login:5000/team-${chain_images[(k - 1) % ${#chain_images[@]}]}/busybox:1.37 ;;&
	*) pods=6 && poll 60 batch "batch-$k" $pods "$picture" ;;
	esac
	sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
	offset=$(stat -c %s "$out/a")
	if ended a; then process=before; else strike_link; fi
	hit=$SECONDS
	await_link
	took=$((SECONDS - hit))
	read -r load _ </proc/loadavg
	[[ -n $mended || ${#undo[@]} == 0 ]] || "${undo[@]}"
	judge_link
	rows+=("$PROCTRACK	$seed	$nodes	$form of $chain	$moment	$host	$process	$fault	$outcome	$code	$took	LEFT	$message	$(date -u +%FT%TZ)	$load	$version")
	printf '%-7s %d nodes %-8s %-5s %s %-14s %-4s  %s, code %s after %s s (%s s in all)  %s\n' "$seed" "$nodes" "$form" "$moment" "$host" "$process" "$fault" "$outcome" "$code" "$took" $((SECONDS - began)) "$message"
	[[ $code == + ]] && all_nodes_run
}

# await_link waits until the run has healed or ended, or for the longest time, and sets code: "+" for
# a run that has healed, "-" for one that has not ended, "srun" where only srun waits.
await_link() {
	local probed=
	until ended a || only_srun_waits || ((SECONDS - hit > longest)); do
		if [[ -z $mended && ${#undo[@]} -gt 0 ]] && ((SECONDS - hit >= outage)); then
			mended=yes
			"${undo[@]}"
		fi
		if [[ $moment != end && (-n $mended || ${#undo[@]} == 0) ]] && pods_are_ready; then
			touch "$claim/go.$k"
			[[ -n $probed ]] || ! batch "probe-$k" "$nodes" busybox:1.37 || probed=yes
			[[ -n $probed ]] && set_is_right "$k" 2>/dev/null && batch_is_done "probe-$k" "$nodes" && batch_is_done "batch-$k" $pods && return
		fi
		sleep 0.1
	done
	if ended a; then
		wait "${pids[a]}"
		code=$?
	elif only_srun_waits; then
		code=srun
	else
		code=-
	fi
}

# judge_link sets message and outcome.
judge_link() {
	local each
	message=$(cause)
	case $moment/$code in
	# As in other rounds, the answers count, and not the exit code: srun's is that of a lost task.
	*/+ | end/[0-9]* | end/srun) outcome=healed ;;
	*/0) outcome=WRONG ;;
	*/-)
		outcome=HANGS
		for each in n1 n2 n3; do
			echo "--- $each"
			"$bed" run $each ps -e -o pid,ppid,uid,stat,wchan:20,etimes,args --width 200
		done >"$kept/$seed.processes" 2>&1
		;;
	*)
		outcome=ended
		((took <= limit)) || outcome=LATE
		grep -qE "$causes" <<<"$message" || outcome=UNCLEAR
		;;
	esac
	case $moment/$process in
	end/before | */nothing) [[ $outcome != healed ]] || outcome=missed ;;
	*/before) outcome=FAILED ;; # without a fault
	esac
}

is_over() { ended a || only_srun_waits; }

# chain SEED ROUNDS starts a run, and injects faults with the seeds from SEED on, until one ends
# it. It increases seed and i by the number of rounds. What is left after the end counts for the
# last round.
chain() {
	local chain=$1 most=$2 count=0 offset=0 rows=() left swept= mended= since= last bad place began=$SECONDS
	choose_chain "$chain"
	[[ $state == debug ]] && fault=- || fault=disk
	rm -rf "$home"/{shared,debug}
	"$bed" run --user alice login mkdir shared
	workload=sets begin_run
	while ((count < most)); do
		case $((++count)) in 1) place=first ;; $most) place=last ;; *) place= ;; esac
		link $count $((chain + count - 1)) $place || break
	done
	seed=$((seed + count)) i=$((i + count - 1))
	last=${rows[-1]}
	if [[ $(cut -f10 <<<"$last") == + ]]; then
		touch "$claim/go.end"
		poll 120 is_over || rows[-1]=$(awk -F'\t' -v OFS='\t' '{ $9 = "HANGS"; $13 = "the run does not end"; print }' <<<"$last")
		ended a && wait "${pids[a]}"
		printf '%-7s ended with %s\n' "$chain" $?
	fi
	cp "$out/a" "$out/whole"
	if ! ended a; then
		cancel_jobs
		"$bed" run login sh -c 'pgrep -u alice -f "^srun|berth run" | xargs -r kill -KILL'
	fi
	in_state_d >"$out/left"
	sweep >>"$out/left"
	left=$(<"$out/left")
	[[ -z $left ]] || rows[-1]=$(awk -F'\t' -v OFS='\t' '{ $9 = $9 "+LEFT"; print }' <<<"${rows[-1]}")
	for last in "${rows[@]::${#rows[@]}-1}"; do echo "${last/$'\t'LEFT$'\t'/$'\t-\t'}"; done >>"$results"
	echo "${rows[-1]/$'\t'LEFT$'\t'/$'\t'${left:-${swept:--}}$'\t'}" >>"$results"
	printf '%-7s %d rounds in %s s  %s\n' "$chain" "$count" $((SECONDS - began)) "${left:-$swept}"
	cp "$out/whole" "$kept/$chain.chain"
	bad=$(printf '%s\n' "${rows[@]}" | cut -f9 | grep -cvxE 'healed|ended|missed')
	if ((bad > 0)); then
		wrong=$((wrong + bad))
		[[ ! -e $home/debug ]] || cp -rT "$home/debug" "$kept/$chain.debug"
	fi
	clean
	for left in n1 n2 n3; do idle $left; done
}
