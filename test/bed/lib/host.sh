# shellcheck shell=bash
# A host: PID 1 of a set of namespaces, with a separate hostname, network, /etc,
# /dev, /run, /tmp and home folder, and a read-only view of the rest of the
# machine.

host() {
	load_settings
	local name=$1 pid
	declare -A daemons
	read -r pid _ </proc/self/stat
	echo "$pid" >"$state/pid/$name"
	hostname "$name"
	connect_host "$name"
	mount_host "$name"
	start_daemons "$name"
	awk '{ print $5 }' /proc/1/mountinfo >/run/bed/mounts
	touch /run/bed/ready
	# The shell reaps orphans while it waits, and it waits for ever.
	sleep infinity &
	wait
}

# connect_host plugs eth0 into the switch. It needs the machine's /proc, which mount_host
# replaces later.
connect_host() {
	nsenter --net="$bed_router" ip -batch - <<-END
		link add v-$1 mtu $(mtu_of "$1") type veth peer name eth0 mtu $(mtu_of "$1") netns 1
		link set v-$1 master br0 up
	END
	ip -batch - <<-END
		link set lo up
		addr add $(address_of "$1")/24 dev eth0
		link set eth0 up
		route add default via $(address_of router)
	END
	[[ $IPV6 == on ]] || return 0
	ip -batch - <<-END
		addr add $(address6_of "$1")/64 dev eth0 nodad
		route add default via $(address6_of router)
	END
}

# Order matters: files below /run, /tmp and /var/tmp, such as the bed's, are used
# before other mounts cover these folders.
mount_host() {
	local name=$1 bind private=nosuid,nodev
	cd /
	[[ -z $FOLDERS ]] || add_folders
	mount -t proc -o "$private,noexec${PROC_OPTIONS:+,$PROC_OPTIONS}" proc /proc
	mount -t sysfs -o $private,noexec sysfs /sys
	mount_cgroups
	mount -t devpts -o mode=620,gid=5,ptmxmode=666,newinstance devpts /dev/pts
	mount -t tmpfs -o mode=1777,$private tmpfs /dev/shm
	mount -t mqueue mqueue /dev/mqueue

	mount -t overlay -o "ro,lowerdir=$state/etc:/etc" overlay /etc
	mount --bind -o "$private${HOME_OPTIONS:+,$HOME_OPTIONS}" "$state/home" /home
	mount --bind "$state/log/$name" /var/log
	mount -t tmpfs -o mode=755 tmpfs /var/spool
	mount -t tmpfs -o mode=755 tmpfs /var/lib/munge
	mount -t tmpfs -o mode=755 tmpfs /srv
	for bind in $BED_BIND; do
		[[ ${bind#*:} != /srv/* ]] || mkdir -p "${bind#*:}"
		[[ -d ${bind#*:} ]] || die "BED_BIND $bind: choose a folder below /srv, or one that exists"
		mount --bind -o ro "${bind%%:*}" "${bind#*:}"
	done

	[[ $SHARED == off ]] || share_folder

	mount -t tmpfs -o mode=755,$private tmpfs /run
	mkdir -m 1777 /run/lock
	mkdir -p /run/bed /run/munge /run/nslcd /var/log/munge
	local local_options=$private${TMP_OPTIONS:+,$TMP_OPTIONS}
	if [[ $LOCAL == disk ]]; then
		mount --bind -o "$local_options" "$state/disk/$name/tmp" /tmp
		mount --bind -o "$local_options" "$state/disk/$name/var-tmp" /var/tmp
	else
		mount -t tmpfs -o "mode=1777,$local_options" tmpfs /tmp
		mount -t tmpfs -o "mode=1777,$local_options" tmpfs /var/tmp
	fi
	[[ $name != n* || $PROGRAMS == all ]] || hide_programs
	# This comes last, because a bind mount inherits the read-only flag.
	mount -o remount,bind,ro /
}

# add_folders replaces the root of the host by one with folders that the machine does not have.
# All hosts share them.
add_folders() {
	local new=$state/new-root path last=none
	# Layers of an overlay must not be in each other.
	mount -t tmpfs -o mode=755 tmpfs "$new"
	(cd "$new" && mkdir $FOLDERS)
	mount -t overlay -o "ro,lowerdir=$new:/" overlay "$new"
	# An overlay does not show what is mounted below its layers.
	while read -r path; do
		[[ $path == / || $path == "$last"/* || $path == "$new" ]] || { mount --rbind "$path" "$new$path" && last=$path; }
	done < <(awk '{ print $5 }' /proc/self/mountinfo | LC_ALL=C sort -u)
	mount --bind "$state" "$new$state"
	for path in $FOLDERS; do
		mount --bind "$state/folders/$path" "$new/$path"
	done
	cd "$new"
	pivot_root . .
	umount --lazy .
	cd /
}

# share_folder serves a folder of the bed with one process on each host. Like a file
# server, it creates files as the user who asks.
share_folder() {
	mkdir /srv/shared
	# A separate mount stays writable.
	mount --bind "$state/shared" /srv/shared
	bindfs -o default_permissions /srv/shared /srv/shared
}

# hide_programs hides the machine's programs that a small compute node does not have. A
# shell and the usual small tools, Slurm, munge, LDAP and newuidmap stay. Of the machine's
# other folders and data, only shared libraries stay visible.
hide_programs() {
	local packages=(bash dash coreutils util-linux bsdutils mount passwd login hostname grep sed mawk findutils
		tar gzip procps iproute2 libc-bin uidmap slurmd slurm-client munge nslcd)
	local path dir new=/run/bed/programs
	# A separate file system: set-user-id programs do not work below /run.
	mkdir "$new"
	mount -t tmpfs -o mode=755 tmpfs "$new"
	mkdir "$new/bin" "$new/sbin"
	while read -r path; do
		dir=${path%/*}
		# -L: alternatives are links into /etc, to programs that are hidden.
		[[ ! -f $path ]] || cp -L --preserve=mode,ownership,xattr "$path" "$new/${dir##*/}/"
	done < <(
		dpkg-query -L "${packages[@]}" | grep -E '^(/usr)?/s?bin/[^/]+$'
		printf '%s\n' /usr/bin/awk /usr/sbin/{slurmd,slurmstepd,dnsmasq}
	)
	for dir in /usr/local /usr/share /usr/libexec /usr/games /usr/src /*; do
		case $dir in
		/bin | /sbin | /lib* | /usr | /etc | /dev | /proc | /sys | /run | /tmp | /var | /home | /srv) ;;
		*) [[ ! -d $dir || -L $dir ]] || mount -t tmpfs -o ro,mode=755 tmpfs "$dir" ;;
		esac
	done
	mount --bind "$new/bin" /usr/bin
	mount --bind "$new/sbin" /usr/sbin
}

start_daemons() {
	local name=$1
	chown munge: /run/munge /var/lib/munge /var/log/munge
	chown nslcd: /run/nslcd
	daemon munged setpriv --reuid munge --regid munge --clear-groups munged -F --num-threads=2
	daemon nslcd nslcd -n
	[[ $RESOLVER != loopback ]] ||
		daemon resolver dnsmasq_on 127.0.0.53 --server="$(address_of ctl)"
	answers munged test -S /run/munge/munge.socket.2
	answers nslcd test -S /run/nslcd/socket
	case $name in
	ctl) start_ctl ;;
	n*)
		# slurmd waits many seconds before its second try.
		await 120 listening ctl 6817 || die "slurmctld does not answer"
		mkdir /var/spool/slurmd
		daemon slurmd slurmd -D -N "$(slurm_name_of "$name")"
		answers slurmd listening "$name" 6818
		;;
	esac
}

# The controller's host also serves names, the directory, and accounting.
start_ctl() {
	daemon slapd slapd -h ldap:/// -f /etc/ldap/slapd.conf -d 0
	daemon dnsmasq dnsmasq_on "$(address_of ctl)" --local=/test/ \
		--host-record="www.outside.test,$web_address$([[ $IPV6 == off ]] || echo ",$web_address6")" \
		--cname=alias.outside.test,www.outside.test \
		--txt-record=note.outside.test,hello
	answers slapd listening ctl 389
	[[ $ACCT == none ]] || start_slurmdbd
	install -d -o slurm /var/spool/slurmctld
	daemon slurmctld slurmctld -D
	answers slurmctld listening ctl 6817
}

# start_slurmdbd starts MariaDB with only the system tables that slurmdbd's stored
# procedures need, and without users. That is faster than a complete installation.
start_slurmdbd() {
	install -d -o slurm /run/slurm /run/mysqld /var/spool/mariadb
	local mariadbd=(mariadbd --no-defaults --user=slurm --datadir=/var/spool/mariadb
		--skip-grant-tables --innodb-buffer-pool-size=64M --innodb-log-file-size=16M)
	printf 'create database mysql;\nuse mysql;\n' |
		cat - /usr/share/mysql/mysql_system_tables.sql |
		"${mariadbd[@]}" --bootstrap >/var/log/mariadb-bootstrap.log 2>&1
	daemon mariadb "${mariadbd[@]}" --skip-networking --socket=/run/mysqld/mysqld.sock \
		--pid-file=/run/mysqld/mysqld.pid
	answers mariadb test -S /run/mysqld/mysqld.sock
	daemon slurmdbd setpriv --reuid slurm --regid slurm --init-groups slurmdbd -D
	answers slurmdbd listening ctl 6819
}

# dnsmasq_on ADDRESS OPTION... answers from /etc/hosts and from the options, and
# never queries the machine's own resolver.
dnsmasq_on() {
	local address=$1
	shift
	exec dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --user=root \
		--pid-file= --log-facility=- --bind-interfaces --listen-address="$address" "$@"
}

daemon() {
	local name=$1
	shift
	"$@" >"/var/log/$name.log" 2>&1 </dev/null &
	daemons[$name]=$!
}

# answers DAEMON CMD... waits until CMD succeeds, but not longer than DAEMON lives.
answers() {
	local name=$1
	shift
	await 120 answers_or_dead "$name" "$@" && kill -0 "${daemons[$name]}" ||
		die "$name did not start: see its log"
}

answers_or_dead() { "${@:2}" || ! kill -0 "${daemons[$1]}"; }

listening() { (exec 3<>"/dev/tcp/$1/$2"); }
