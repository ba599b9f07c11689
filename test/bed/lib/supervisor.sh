# shellcheck shell=bash
# The supervisor: PID 1 of the bed. Its network namespace is the bed's switch
# and its router to the outside; its mount namespace holds what hosts share.
#
# /proc stays the machine's, so that /proc/self gives process ids that other
# commands of bed can use.

supervisor() {
	load_settings
	instance=$(current_instance)
	read -r pid _ </proc/self/stat
	echo "$pid" >"$state/pid/supervisor"
	mount -t tmpfs -o mode=755 tmpfs /run
	make_devices
	make_network
	raise_limits

	export bed_router=/proc/$pid/ns/net
	start_web </dev/null &
	local name
	for name in $(host_names); do
		start_host "$name" </dev/null &
	done
	# Children that end, adopted ones too, are reaped while this waits.
	read -r _ || true
	echo "supervisor: the cleaner is gone: ending"
	# First everything in the cgroups. The rest is in this PID namespace and ends
	# with PID 1.
	remove_remains
}

# raise_limits sets the limits of Debian's unit for slurmd; jobs inherit them. Root
# in a container may lack the right; jobs also work with lower limits.
raise_limits() {
	local limit
	for limit in "-n 131072" "-l unlimited" "-s unlimited"; do
		ulimit $limit 2>/dev/null || true
	done
}

start_host() {
	unshare_cgroups "$1" unshare -m -u -i -n -p -f --kill-child --propagation private \
		"$bed" host "$1"
}

# make_devices makes a separate /dev with the modes that a distribution's udev sets.
# The machine's /dev may differ, and must not change.
make_devices() {
	local dev=/run/dev node
	mkdir $dev
	mount -t tmpfs -o mode=755,size=1m tmpfs $dev
	mkdir $dev/net $dev/pts $dev/shm $dev/mqueue
	for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 ptmx:5:2 \
		fuse:10:229 net/tun:10:200; do
		IFS=: read -r node major minor <<<"$node"
		mknod -m 666 "$dev/$node" c "$major" "$minor"
	done
	mknod -m 644 $dev/kmsg c 1 11
	ln -s /proc/self/fd $dev/fd
	ln -s fd/0 $dev/stdin
	ln -s fd/1 $dev/stdout
	ln -s fd/2 $dev/stderr
	# Accelerators and fast networks, where the machine has them.
	for node in /dev/nvidia* /dev/dri /dev/kfd /dev/infiniband; do
		[[ ! -e $node ]] || cp -a "$node" $dev/
	done
	make_fake_gpus $dev
	mount --move $dev /dev
}

# make_fake_gpus makes device files with the names of NVIDIA's. They are other
# devices that few programs need: a job that is refused a GPU is refused these, too.
make_fake_gpus() {
	[[ $GPUS -gt 0 ]] || return 0
	rm -f "$1"/nvidia*
	mknod -m 666 "$1/nvidiactl" c 1 3
	mknod -m 666 "$1/nvidia0" c 1 7
	[[ $GPUS -lt 2 ]] || mknod -m 666 "$1/nvidia1" c 1 8
}

make_network() {
	ip -batch - <<-END
		link set lo up
		link add br0 type bridge
		addr add $(address_of router)/24 dev br0
		link set br0 up
	END
	echo 1 >/proc/sys/net/ipv4/ip_forward
	[[ $IPV6 == on ]] || return 0
	ip addr add "$(address6_of router)/64" dev br0 nodad
	echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
}

# The outside world: a namespace behind the router, with HTTP on port 80 and
# echo on port 7, TCP and UDP.
start_web() {
	exec unshare -n bash -c '
		nsenter --net="$bed_router" ip -batch - <<-END
			link add outside type veth peer name eth0 netns $$
			addr add $2/24 dev outside
			link set outside up
		END
		ip -batch - <<-END
			link set lo up
			addr add $1/24 dev eth0
			link set eth0 up
			route add default via $2
		END
		if [[ $4 == on ]]; then
			nsenter --net="$bed_router" ip addr add "$6/64" dev outside nodad
			ip addr add "$5/64" dev eth0 nodad
			ip route add default via "$6"
			socat TCP6-LISTEN:7,fork,reuseaddr,ipv6only=1 PIPE &
			socat UDP6-LISTEN:7,fork,ipv6only=1 PIPE &
		fi
		socat TCP-LISTEN:7,fork,reuseaddr PIPE &
		socat UDP-LISTEN:7,fork PIPE &
		exec busybox httpd -f -v -p 80 -h "$3"
	' web "$web_address" "$web_router" "$state/web" "$IPV6" "$web_address6" "$web_router6" &>"$state/log/web.log"
}
