# shellcheck shell=bash
# Stops each process of a shim once, as soon as it appears, until /run/stops is gone, and
# prints what it was: one that only answers (-info), the first process of a pod's shim, the
# server that this leaves behind, a server that has a child already and so has begun
# with a container, or one that cleans up. It starts no program, to be quick.
declare -A done=()
while [[ -e /run/stops ]]; do
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		[[ -z ${done[$pid]:-} ]] && { read -r name <"$dir/comm"; } 2>/dev/null || continue
		case $name in
		containerd-shim) ;;
		containerd* | berth* | exe | "${0##*/}" | bash | sh) continue ;; # they may become one
		*)
			done[$pid]=other
			continue
			;;
		esac
		kill -STOP "$pid" || continue
		done[$pid]=stopped
		children=
		for task in "$dir"/task/*; do
			read -r some <"$task/children" && children+=$some
		done
		mapfile -d '' -t words <"$dir/cmdline"
		case " ${words[*]} " in
		*" -info "*) echo info ;;
		*" start "*) echo first ;;
		*" delete "*) echo delete ;;
		*) echo "server${children:+ with a child}" ;;
		esac
	done
done
