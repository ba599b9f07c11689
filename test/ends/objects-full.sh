#!/bin/bash
# Collects results of a Slurm job into a folder of a disk of 2 MB, which is full at first. The exit
# code is 0 if the status has the reason, and the results are complete once there is room.
#   objects-full.sh DISK
set -euo pipefail
disk=$1
mkdir ~/full
cd ~/full
export KUBECACHEDIR=$PWD/cache

kind=slurmjob
. "${0%/*}/objects-status.sh"
fail() {
	echo "status: $(field large '*')"
	ls -lR out "$disk"
	echo "FAILED: $*"
	exit 1
}

head -c 1500000 /dev/zero >"$disk/filler"
kubectl create -f - <<END
apiVersion: wlm.sylabs.io/v1alpha1
kind: SlurmJob
metadata: {name: large}
spec:
  batch: |
    #!/bin/sh
    #SBATCH --mem=10 --output=/dev/null --chdir=$PWD
    mkdir out
    head -c 1000000 /dev/urandom >out/data
  results: {from: out, mount: {name: data, hostPath: {path: $disk/results, type: DirectoryOrCreate}}}
END
await 120 contains large message 'the results are not collected yet: write to the volume: tar in pod large-job-collect ended with exit code 1: '
await 120 contains large message 'No space left on device'
is large state COMPLETED && is large status Running || fail 'the object has ended'
is large results COLLECTING || fail 'the results are complete'
echo 'the disk is full'
rm "$disk/filler"
await 180 is large results COLLECTED
cmp out/data "$disk/results/out/data" || fail 'the results differ'
is large status Succeeded || fail 'the object has not succeeded'
echo 'the results are complete'
