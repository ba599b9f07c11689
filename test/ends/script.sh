#!/bin/bash
# Runs berth from the shell of a batch script, where it starts a step: input, output,
# exit codes and environment are as without one.
export PATH=/srv/ends/dist/bin:$PATH
workload=(-q -f /srv/ends/ends/exit.yaml --image /srv/ends/images/busybox.tar)
printf '1\n2\n' | while read -r line; do
	berth run "${workload[@]}"
	echo "line $line: $?"
done
echo words | berth run -q -- sh -c 'cat; echo "$SLURM_NTASKS tasks, step ${SLURM_STEP_ID-none}"; grep -q /step_ /proc/self/cgroup && echo "in a step"; exit 7'
echo "command: $?"
berth run -q -- sh -c 'while echo y; do :; done' | head -n 1
echo "pipe: ${PIPESTATUS[0]}"
berth run "${workload[@]}" >/dev/full
echo "full: $?"
echo "as the script: $(exec berth run -q -- sh -c 'echo "${SLURM_STEP_ID-none}"')"
