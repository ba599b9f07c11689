# shellcheck shell=bash
# Runs on a Kubernetes that exists already. A second berth cluster stands for it. Its API
# server listens on the loopback of n1.

# hosting starts that cluster. It puts the kubeconfig of a user with few rights where jobs on
# n1 find it.
hosting() {
	begin host alice login salloc -N"${hosts:-3}" --mem=1500 bash -c "berth up --image $image --image registry.local:31500/slurm-tensorflow:latest=$sif && echo hosting && until [ -e guest.end ]; do sleep 0.2; done"
	says host hosting
	"$bed" run --user alice n1 sh -c 'PATH=/srv/ends/dist/libexec/berth:$PATH KUBECONFIG=$(ls /dev/shm/berth-*/*/kubeconfig) sh '$here/hosting.sh >"$out/hosting" || fail "no kubeconfig for guests: $(cat "$out/hosting")"
}

end_hosting() {
	"$bed" run --user alice login touch guest.end
	ends host 0
	"$bed" run --user alice login rm guest.end guest.conf
}

nothing_there() { [[ -z $(kubectl get all,secrets -n guests -o name || echo unknown) ]]; }
awaits_nothing() { poll 60 nothing_there || fail "left in the cluster: $(kubectl get all,secrets -n guests)"; }

existing_cluster() {
	hosting
	# The exit code is the Job's, and its pods are on the hosts of the job. The batch script
	# starts no step itself.
	begin a alice login sh -c "printf '#!/bin/bash\nPATH=$PATH:/srv/ends/dist/bin\nberth run --kubeconfig guest.conf --pin -f $here/guest.yaml\n' >guest.sh
		sbatch -W -N2 -w n1,n2 --mem=100 -o guest.out guest.sh; code=\$?; cat guest.out; rm guest.sh guest.out; exit \$code"
	ends a 7
	[[ $(grep -o 'guest on n[12]' "$out/a" | sort -u | wc -l) == 2 ]] || fail "not on the job's hosts: $(cat "$out/a")"
	awaits_nothing
	# A template of kube-slurm, unchanged. Its options --output and --gpus are for another site.
	begin k alice login sh -c "cd /srv/ends/kube-slurm/templates && export KUBECONFIG=\$HOME/guest.conf &&
		sbatch -W -w n1 --gpus=0 --output=\$HOME/k.out slurm-jupyter-job.sh; code=\$?; cat \$HOME/k.out; rm \$HOME/k.out; exit \$code"
	ends k 0
	says k 'hello from a sif'
	awaits_nothing
	# What is refused, and an ordinary run.
	begin b alice login srun -N1 -w n1 --mem=100 sh -c "berth run --kubeconfig guest.conf --image $image -f $here/exit.yaml; echo options \$?
		printf 'apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n' | berth run --kubeconfig guest.conf -f -; echo scope \$?
		berth run --kubeconfig guest.conf --namespace default -f $here/exit.yaml; echo namespace \$?
		berth run --kubeconfig guest.conf -f $here/exit.yaml"
	ends b 0
	says b 'options 64'
	says b 'scope 65'
	says b 'namespace 65'
	says b 'no right to: create jobs.batch'
	awaits_nothing
	# Whatever ends the run: scancel, or a kill of berth.
	begin c alice login srun -N1 -w n1 --mem=100 --job-name=c berth run --kubeconfig guest.conf -f $here/loop.yaml
	says c started
	"$bed" run --user alice login scancel -n c
	ends c 143 15 1 137
	says c 'ended in order'
	awaits_nothing
	# The shell stays: slurmstepd kills what the last task of a step leaves behind.
	begin d alice login srun -N1 -w n1 --mem=100 --job-name=d sh -c "berth run --kubeconfig guest.conf -f $here/loop.yaml; echo code \$?; sleep 1000"
	says d started
	node pkill -KILL -f '^[^ ]*berth run --kubeconfig'
	says d 'code 137'
	awaits_nothing
	"$bed" run --user alice login scancel -n d
	ends d 143 15 1 137
	end_hosting
}
