# shellcheck shell=bash
# The files of $state/etc, which lie over the machine's own /etc in each host.

write_config() {
	mkdir -p "$state"/{etc/slurm,etc/munge,etc/berth,log,pid,home,disk,web}
	chmod 755 "$state" "$state"/*
	[[ $SHARED == off ]] || install -d -m 1777 "$state/shared"
	local name
	[[ -z $FOLDERS ]] || mkdir "$state/new-root"
	for name in $FOLDERS; do install -d -m 1777 "$state/folders/$name"; done
	for name in $(host_names); do
		install -d "$state/log/$name" "$state/disk/$name"
		install -d -m 1777 "$state/disk/$name/tmp" "$state/disk/$name/var-tmp"
	done
	write_users
	write_names
	write_ldap
	: >"$state/etc/berth/config.yaml" # hosts see what is written into it later, but no new file
	slurm_conf >"$state/etc/slurm/slurm.conf"
	cgroup_conf >"$state/etc/slurm/cgroup.conf"
	echo "$BED_PLUGSTACK" >"$state/etc/slurm/plugstack.conf"
	[[ -z $BED_OCI ]] || echo "$BED_OCI" >"$state/etc/slurm/oci.conf"
	[[ $GPUS == 0 ]] || echo "Name=gpu File=/dev/nvidia[0-$((GPUS - 1))]" >"$state/etc/slurm/gres.conf"
	[[ $ACCT == none ]] || write_slurmdbd_conf

	head -c 128 /dev/urandom >"$state/etc/munge/munge.key"
	chown -R munge: "$state/etc/munge"
	chmod 700 "$state/etc/munge"
	chmod 400 "$state/etc/munge/munge.key"
	echo "the outside world" >"$state/web/index.html"
}

# write_users writes the users of the bed, and the users of the machine whose names and
# numbers no user of the bed has.
write_users() {
	local file name id names next=$first_subordinate
	names=$(printf '%s\n' "${users[@]}" | paste -sd'|')
	for file in passwd group; do
		awk -F: -v names="^($names)\$" -v first="$first_user" \
			'$1 !~ names && ($3 < first || $3 >= first + 100)' "/etc/$file" >"$state/etc/$file"
	done
	for name in "${users[@]}"; do
		id=$(id_of "$name")
		install -d -m 700 -o "$id" -g "$id" "$state/home/$name"
		case $name in
		dave) echo "$id:$next:65536" ;;
		carol) ;;
		*) echo "$name:$next:65536" ;;
		esac >>"$state/etc/subuid"
		next=$((next + 65536))
		[[ $name != dave ]] || continue
		echo "$name:x:$id:$id::/home/$name:/bin/bash" >>"$state/etc/passwd"
		echo "$name:x:$id:" >>"$state/etc/group"
	done
	cp "$state/etc/subuid" "$state/etc/subgid"
}

write_names() {
	local name
	{
		echo "127.0.0.1 localhost"
		for name in $(host_names); do
			echo "$(address_of "$name") $name"
			[[ $IPV6 == off ]] || echo "$(address6_of "$name") $name"
		done
	} >"$state/etc/hosts"
	case $RESOLVER in
	ctl) echo "nameserver $(address_of ctl)" ;;
	loopback) echo "nameserver 127.0.0.53" ;;
	esac >"$state/etc/resolv.conf"
	cat >"$state/etc/nsswitch.conf" <<-END
		passwd: files ldap
		group:  files ldap
		shadow: files
		hosts:  files dns
	END
}

# A real directory with one user in it. back_ldif keeps it in plain files,
# which slapadd writes in a hundredth of a second.
write_ldap() {
	mkdir -p "$state/etc/ldap/directory"
	cat >"$state/etc/ldap/slapd.conf" <<-END
		include /etc/ldap/schema/core.schema
		include /etc/ldap/schema/cosine.schema
		include /etc/ldap/schema/nis.schema
		modulepath /usr/lib/ldap
		moduleload back_ldif
		database ldif
		suffix "dc=bed"
		directory $state/etc/ldap/directory
	END
	slapadd -q -f "$state/etc/ldap/slapd.conf" <<-END
		dn: dc=bed
		objectClass: dcObject
		objectClass: organization
		o: bed
		dc: bed

		dn: uid=dave,dc=bed
		objectClass: account
		objectClass: posixAccount
		cn: dave
		uid: dave
		uidNumber: $(id_of dave)
		gidNumber: $(id_of dave)
		homeDirectory: /home/dave
		loginShell: /bin/bash

		dn: cn=dave,dc=bed
		objectClass: posixGroup
		cn: dave
		gidNumber: $(id_of dave)
	END
	sed -i "s|^directory .*|directory /etc/ldap/directory|" "$state/etc/ldap/slapd.conf"
	cat >"$state/etc/nslcd.conf" <<-END
		uid nslcd
		gid nslcd
		uri ldap://$(address_of ctl)/
		base dc=bed
		reconnect_retrytime 2
	END
	chown root:nslcd "$state/etc/nslcd.conf"
	chmod 640 "$state/etc/nslcd.conf"
}

slurm_conf() {
	cat <<-END
		ClusterName=$BED_NAME
		SlurmctldHost=ctl
		SlurmUser=slurm
		AuthType=auth/munge
		CredType=cred/munge
		StateSaveLocation=/var/spool/slurmctld
		SlurmdSpoolDir=/var/spool/slurmd
		SlurmctldPidFile=/run/slurmctld.pid
		SlurmdPidFile=/run/slurmd.pid
		MailProg=/bin/true
		SlurmctldDebug=verbose
		SlurmdDebug=verbose
		ProctrackType=proctrack/$PROCTRACK
		TaskPlugin=task/$TASK
		JobAcctGatherType=jobacct_gather/linux
		JobAcctGatherFrequency=5
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU_Memory
		DefMemPerCPU=100
		ReturnToService=2
		MpiDefault=none
		PrologFlags=Alloc,Contain
		KillWait=3
		UnkillableStepTimeout=20
		MinJobAge=300
		SlurmctldTimeout=10
		SlurmdTimeout=20
		TreeWidth=64
		SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
		SlurmdParameters=config_overrides
		PropagateResourceLimits=NONE
		PlugStackConfig=/etc/slurm/plugstack.conf
	END
	if [[ $ACCT == slurmdbd ]]; then
		echo AccountingStorageType=accounting_storage/slurmdbd
		echo AccountingStorageHost=ctl
	fi
	[[ -z $BED_SLURM_CONF ]] || echo "$BED_SLURM_CONF"
	[[ $GPUS == 0 ]] || echo GresTypes=gpu
	cat <<-END
		$(node_lines "CPUs=$CPUS RealMemory=$MEM $([[ $GPUS == 0 ]] || echo "Gres=gpu:$GPUS") State=UNKNOWN")
		PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
	END
}

# node_lines SETTINGS prints the lines of the nodes. Names of nodes that differ from the
# names of their hosts do not resolve, so these lines have the address.
node_lines() {
	local name
	[[ -n $NAMES ]] || echo "NodeName=n[1-$NODES] $*"
	[[ -z $NAMES ]] || for name in $(host_names | tail -n +3); do
		echo "NodeName=$(slurm_name_of "$name") NodeHostname=$name NodeAddr=$name $*"
	done
}

# cgroup_conf names the cgroup plugin, because Slurm 22.05 loads one under every
# ProctrackType, and cannot choose one itself if both versions are mounted. Its cgroup/v2
# asks systemd for a scope unless IgnoreSystemd is set.
cgroup_conf() {
	case $cgroup_kind in
	v2) printf 'CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n' ;;
	*) echo CgroupPlugin=cgroup/v1 ;;
	esac
	cat <<-END
		CgroupMountpoint=/sys/fs/cgroup
		CgroupAutomount=no
		ConstrainCores=yes
		ConstrainRAMSpace=yes
		ConstrainSwapSpace=no
		ConstrainDevices=$([[ $GPUS == 0 ]] && echo no || echo yes)
		MinRAMSpace=30
	END
}

write_slurmdbd_conf() {
	cat >"$state/etc/slurm/slurmdbd.conf" <<-END
		AuthType=auth/munge
		DbdHost=ctl
		SlurmUser=slurm
		PidFile=/run/slurm/slurmdbd.pid
		DebugLevel=info
		StorageType=accounting_storage/mysql
		StorageHost=localhost
		StorageUser=slurm
		StorageLoc=slurm_acct
	END
	chown slurm: "$state/etc/slurm/slurmdbd.conf"
	chmod 600 "$state/etc/slurm/slurmdbd.conf"
}
