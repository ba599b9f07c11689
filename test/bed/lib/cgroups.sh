# shellcheck shell=bash
# The control groups of a bed: <hierarchy>/bed-NAME/HOST, in each hierarchy
# that is used. Each host then has a cgroup namespace rooted there, and mounts
# the hierarchies for itself; the machine's own mounts stay as they are.

# hierarchies prints "CONTROLLERS MOUNTPOINT" for each hierarchy that the machine
# has mounted, cgroup2 as "unified".
hierarchies() {
	awk '{
		for (i = 7; $i != "-"; i++);
		if ($(i + 1) == "cgroup2" && !two++) print "unified", $5
		if ($(i + 1) != "cgroup") next
		controllers = ""
		n = split($(i + 3), option, ",")
		for (j = 1; j <= n; j++)
			if (option[j] ~ /^(cpuset|cpu|cpuacct|blkio|memory|devices|freezer|pids|name=.*)$/)
				controllers = controllers (controllers == "" ? "" : ",") option[j]
		if (controllers != "" && !seen[controllers]++) print controllers, $5
	}' /proc/self/mountinfo
}

# used_hierarchies prints the hierarchies that the bed uses. It always uses cgroup2,
# whose cgroup.kill and lists of processes identify what belongs to a bed. It uses
# version 1 where Slurm does.
used_hierarchies() {
	hierarchies | if [[ $cgroup_kind == v1 ]]; then cat; else sed -n '/^unified /p'; fi
}

# choose_cgroup_kind sets the cgroup version for Slurm: none, v1 or v2. The memory
# controller is on only one of the versions, and Slurm uses that one. cgroup_list saves
# the hierarchies for commands that each poll of a test runs.
choose_cgroup_kind() {
	cgroup_kind=none
	if [[ $PROCTRACK != cgroup && $TASK != cgroup ]]; then
		:
	elif hierarchies | grep -Eq '^([a-z]+,)*memory(,| )'; then
		cgroup_kind=v1
	elif grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
		cgroup_kind=v2
	else
		die "this machine has no memory controller for PROCTRACK=cgroup or TASK=cgroup: use PROCTRACK=linuxproc TASK=none"
	fi
	cgroup_list=$(used_hierarchies)
}

make_cgroups() {
	local controllers at dir name
	while read -r controllers at; do
		[[ $cgroup_kind != v2 ]] || enable_controllers "$at"
		for dir in "bed-$BED_NAME" $(host_names | sed "s|^|bed-$BED_NAME/|"); do
			mkdir "$at/$dir"
			[[ ,$controllers, != *,cpuset,* ]] || fill_cpuset "$at/$dir"
		done
		[[ $cgroup_kind != v2 ]] || enable_controllers "$at/bed-$BED_NAME"
		for name in $(host_names); do
			[[ -z $(core_of "$name") || ! -e $at/bed-$BED_NAME/$name/cpuset.cpus ]] ||
				core_of "$name" >"$at/bed-$BED_NAME/$name/cpuset.cpus"
		done
	done < <(used_hierarchies)
}

enable_controllers() {
	local controller
	for controller in cpuset cpu memory pids; do
		echo "+$controller" >"$1/cgroup.subtree_control" ||
			die "cannot enable controller $controller in $1: use PROCTRACK=linuxproc TASK=none"
	done
}

# On version 1 a new cpuset is empty and accepts no process.
fill_cpuset() {
	local file
	for file in cpuset.cpus cpuset.mems; do
		cat "${1%/*}/$file" >"$1/$file"
	done
}

# unshare_cgroups HOST CMD... becomes CMD in the groups of the host, and in a
# cgroup namespace with these as its root. A version 2 group that enables
# controllers for its children may hold no process itself. So the processes move to
# "daemons" after the namespace was made.
unshare_cgroups() {
	local name=$1 leaf
	shift
	join_cgroups "$name"
	[[ $cgroup_kind == v2 ]] || exec unshare -C "$@"
	leaf=$(used_hierarchies | cut -d' ' -f2)/bed-$BED_NAME/$name/daemons
	mkdir "$leaf"
	exec unshare -C sh -c 'echo $$ >"$0" && exec "$@"' "$leaf/cgroup.procs" "$@"
}

# clear_cgroups HOST removes the groups that Slurm made on a host that has ended.
clear_cgroups() {
	local at
	while read -r _ at; do
		find "$at/bed-$BED_NAME/$1" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true
	done < <(used_hierarchies)
}

# join_cgroups HOST moves the calling shell into the groups of the host.
join_cgroups() {
	local controllers at dir
	while read -r controllers at; do
		dir=$at/bed-$BED_NAME/$1
		[[ ! -d $dir/daemons ]] || dir+=/daemons
		echo $BASHPID >"$dir/cgroup.procs"
	done <<<"$cgroup_list"
}

# mount_cgroups is called inside a host, in its cgroup namespace.
mount_cgroups() {
	local list controllers name
	list=$(used_hierarchies)
	if [[ $cgroup_kind == v1 ]]; then
		mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
		while read -r controllers _; do
			[[ $controllers != unified ]] || continue
			name=${controllers#name=}
			mkdir "/sys/fs/cgroup/$name"
			[[ $controllers == "$name" ]] || controllers=none,$controllers
			mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/$name"
		done <<<"$list"
	elif [[ -n $list ]]; then
		mount -t cgroup2 cgroup2 /sys/fs/cgroup
	fi
	# Slurm expects systemd's system.slice there, to make its scope in.
	if [[ $cgroup_kind == v2 ]]; then
		enable_controllers /sys/fs/cgroup
		mkdir /sys/fs/cgroup/system.slice
		enable_controllers /sys/fs/cgroup/system.slice
	fi
}

# kill_cgroups ends every process of the bed, wherever it went.
kill_cgroups() {
	local at
	at=$(hierarchies | sed -n 's/^unified //p')
	[[ ! -w $at/bed-$BED_NAME/cgroup.kill ]] || echo 1 >"$at/bed-$BED_NAME/cgroup.kill"
}

# remove_cgroups removes the bed's groups from all hierarchies, so that it also clears
# up after a bed whose settings are lost. It fails while a group is still in use.
remove_cgroups() {
	local controllers at left=0
	while read -r controllers at; do
		[[ -d $at/bed-$BED_NAME ]] || continue
		find "$at/bed-$BED_NAME" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
	done < <(hierarchies)
	return $left
}
