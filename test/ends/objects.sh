# shellcheck shell=bash
# Slurm jobs of Kubernetes objects.

# Each object has one job, which runs once, although the controller is killed at the moments
# that matter and slurmctld is away and forgets jobs. A policy admits only objects of one user.
slurm_objects() {
	local longest_run=600
	# The next start of slurmctld forgets these partitions.
	"$bed" run ctl scontrol create partitionname=account nodes=ALL allowaccounts=physics || fail "no partition of another account"
	"$bed" run ctl scontrol create partitionname=group nodes=ALL allowgroups=root || fail "no partition of another group"
	node install -m 600 /dev/null /var/tmp/unreadable.sh || fail "no script of another user"
	begin a alice n1 berth run -- bash $here/objects-served.sh
	timeout=200 says a 'stop slurmctld'
	"$bed" run ctl pkill -KILL -x slurmctld
	poll 20 no_slurmctld || fail "slurmctld does not end"
	"$bed" run --user alice n1 touch objects/stopped
	timeout=200 says a 'start slurmctld'
	"$bed" run ctl slurmctld || fail "slurmctld does not start"
	timeout=280 ends a 0
	says a 'each job ran once'
	"$bed" run --user alice n1 rm -rf objects
	node rm /var/tmp/unreadable.sh
}

# Results of a job go to a disk that is full, and then has room.
slurm_objects_full() {
	local disk=/var/tmp/small longest_run=600
	node sh -c "mkdir -p $disk && mount -t tmpfs -o size=2m,mode=1777 tmpfs $disk" || fail "no small disk"
	begin a alice n1 berth run --slurm-jobs --results-image busybox:1.37 --image $image -- bash $here/objects-full.sh $disk
	timeout=200 says a 'the disk is full'
	timeout=200 ends a 0
	says a 'the results are complete'
	"$bed" run --user alice n1 rm -r full
	node sh -c "umount $disk && rmdir $disk"
}

# An unchanged BridgeJob gets its script from an S3 server, and another one uploads its files there,
# although the server is away for a while.
objects_s3() {
	local longest_run=600
	"$bed" run ctl sh -c 'scontrol create PartitionName=skylake Nodes=ALL State=UP && install -d -o alice /home/ec2-user /home/ec2-user/test' || fail "no partition and no folder for the job"
	begin a alice n1 berth run -- bash $here/objects-s3.sh
	timeout=200 ends a 0
	says a 'nothing lost, nothing twice'
	"$bed" run --user alice n1 rm -rf s3
	"$bed" run ctl sh -c 'scontrol delete PartitionName=skylake && rm -r /home/ec2-user' || fail "the partition stays"
}

# A workflow engine runs pods and SlurmJobs in turn, pods stay off the Nodes of partitions, and
# WlmJobs run on two nodes.
slurm_pipeline() {
	begin a alice n1 sh -c "mkdir objects && cd objects &&
		BERTH_IMAGE_CACHE=\$PWD/cache exec berth run --slurm-jobs --results-image busybox:1.37 --image $image -- bash $here/objects-pipeline.sh /srv/ends/pipeline"
	timeout=280 ends a 0
	says a 'pipelines and WlmJobs ended as they should'
	"$bed" run --user alice n1 rm -rf objects .config
}

# Objects follow their jobs over the loss of a node, over preemption, and when only the
# accounting knows the end.
slurm_lost() {
	begin a alice n1 sh -c "mkdir objects && cd objects && exec berth run --slurm-jobs -- bash $here/objects-lost.sh"
	timeout=200 says a 'lose n3'
	"$bed" lose n3
	timeout=200 says a 'start n3'
	"$bed" start n3
	timeout=200 says a 'clear slurmctld'
	"$bed" run ctl pkill -KILL -x slurmctld
	poll 20 no_slurmctld || fail "slurmctld does not end"
	"$bed" run ctl slurmctld -c || fail "slurmctld does not start"
	timeout=200 ends a 0
	says a 'each object has one job'
	"$bed" run --user alice n1 rm -rf objects
}

no_slurmctld() { ! "$bed" run ctl pgrep -x slurmctld >/dev/null; }
