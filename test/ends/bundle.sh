# shellcheck shell=bash
# Slurm steps in containers, from bundles of 'berth image bundle'. The runtime's
# folder is in the user's home, one for each node.

# shellcheck disable=SC2016 # for oci.conf
oci='RunTimeQuery="/srv/ends/dist/libexec/berth/runc --rootless=true --root=/home/%u/runc-%n state %n.%u.%j.%s.%t"
RunTimeKill="/srv/ends/dist/libexec/berth/runc --rootless=true --root=/home/%u/runc-%n kill %n.%u.%j.%s.%t SIGKILL"
RunTimeDelete="/srv/ends/dist/libexec/berth/runc --rootless=true --root=/home/%u/runc-%n delete --force %n.%u.%j.%s.%t"
RunTimeRun="/srv/ends/dist/libexec/berth/runc --rootless=true --root=/home/%u/runc-%n run %n.%u.%j.%s.%t -b %b"'

# All nodes run the same bundle at once, with a writable folder of the user; the
# image's files stay unchanged. This Slurm starts one container per node.
bundle() {
	begin a alice login bash -c "cd && mkdir data && berth image import --image-cache cache $image &&
		berth image bundle --image-cache cache --mount data:/data busybox:1.37 own &&
		srun -N3 --container=\$HOME/own sh -c '
			echo \"uid \$(id -u) on \$(hostname), step \$SLURM_STEP_ID\"; echo x >/data/of-\$(hostname) && echo x >/tmp/own
			echo x >/bin/own && echo it was written'
		code=\$?; ls data; rm -r data cache own runc-*; exit \$code"
	ends a 1
	[[ $(grep -c '^uid 0 on n[123], step 0' "$out/a") == 3 && $(grep -c ' on n2' "$out/a") == 1 ]] || fail "not three tasks on three nodes: $(cat "$out/a")"
	[[ $(grep -cx 'of-n[123]' "$out/a") == 3 ]] || fail "not three files of theirs: $(cat "$out/a")"
	[[ $(grep -c 'Read-only file system' "$out/a") == 3 ]] || fail "the root is not read-only: $(cat "$out/a")"
}
