# shellcheck shell=bash
# What administrators do with etcd, by etcd's own commands; docs/site-operations.md has them.

# etcd_tool PROGRAM ARGS... runs etcdctl or etcdutl on ctl.
etcd_tool() {
	local program=$1
	shift
	[[ $program != etcdctl ]] || set -- --endpoints "https://$(address ctl):2379" --cacert /etc/berth/ca.crt --cert /etc/berth/node.crt --key /etc/berth/node.key "$@"
	both ctl "/srv/site/etcd/$program" "$@"
}
build_etcd_tools() {
	mkdir -p "$stage/etcd" && (cd test/site/etcd && nice go build -o "$stage/etcd/" go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3) && chmod -R a+rX "$stage/etcd" || fail "build etcd's commands"
}

add_member() { seen=$(etcd_tool etcdctl member add c --peer-urls "https://$(address n1):2380"); }

# etcd_restored: etcd is replaced by a backup under running jobs and a session. Jobs that have ended
# since lose their addresses, and jobs and users that are newer than the backup keep theirs.
etcd_restored() {
	local seen given over
	build_etcd_tools
	job alice -J over
	over=${jobs[alice]}
	job alice -J kept
	serve alice n2 7000
	stay alice
	seen=$(etcd_tool etcdctl snapshot save /run/backup.db) || fail "save: $seen"
	on ctl scancel "$over"
	job dave
	poll 20 eval '[[ $(etcdctl get --prefix /berth/site/1/networks/) != *\"name\":\"over\"* ]]' || fail "the job that is over has addresses"
	given=$(addresses)
	stop_etcd
	on ctl rm -r /run/etcd
	seen=$(etcd_tool etcdutl snapshot restore /run/backup.db --data-dir /run/etcd --name default --initial-cluster "default=https://$(address ctl):2380" \
		--initial-advertise-peer-urls "https://$(address ctl):2380" --bump-revision 1000000 --mark-compacted) || fail "restore: $seen"
	start_etcd
	poll 30 registered || fail "etcd does not start with the backup"
	poll 60 as_given || fail "the addresses are $(addresses), want $given"
	talks n1 n2 || fail "pods do not reach each other: $heard"
	[[ $(from_outside alice login 'ps -e -o args= | grep -c "[s]leep 300"') == 1 ]] || fail "the session has not gone on"
	job bob
	seen=$(etcdctl get --prefix /berth/site/1/networks/)
	[[ -z $(grep -o '"address":"[^"]*"' <<<"$seen" | sort | uniq -d) && $(network_of bob) != "$(network_of dave)" && $(network_of bob) != "$(network_of alice)" ]] || fail "given out twice: $seen"
	lose_clients
	on ctl sh -c 'rm /run/backup.db'
}

# member_replaced: one of three members of etcd has lost its disk, and is replaced under running
# jobs. Then another one may end.
member_replaced() {
	local seen
	build_etcd_tools
	with_three
	job alice
	serve alice n2 7000
	stop_member n1
	on n1 rm -rf /run/etcd3
	seen=$(etcd_tool etcdctl member list) || fail "list: $seen"
	seen=$(etcd_tool etcdctl member remove "$(grep -F ', c, ' <<<"$seen" | cut -d, -f1)") || fail "remove: $seen"
	# etcd refuses that until the members have been connected for some seconds.
	poll 30 add_member || fail "add: $seen"
	member n1 --join
	poll 60 eval 'etcd_tool etcdctl endpoint health --cluster >/dev/null' || fail "the new member: $(etcd_tool etcdctl endpoint health --cluster) $(tail -n 3 "$out/etcd-n1.log")"
	talks n1 n2 || fail "pods do not reach each other: $heard"
	stop_member ctl
	poll 60 runs bob || fail "no job starts with the new member and one other"
	# It finds its data when it starts again, with the same options.
	stop_member n1
	member n1 --join
	poll 60 runs bob || fail "no job starts when the new member has been restarted"
	member ctl
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	without_three
}
