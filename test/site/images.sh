# shellcheck shell=bash
# Images for steps.

# image USER makes an image in the user's home folder that contains only busybox.
image() {
	as "$1" login sh -c 'mkdir -p image/bin image/proc image/sys image/dev image/tmp image/etc image/home
		cp /bin/busybox image/bin && for name in sh cat ip ps id hostname grep readlink sleep wc stat mount; do ln -sf busybox image/bin/$name; done
		echo "image of $USER" >image/etc/os-release; : >image/etc/resolv.conf; ln -sfn /proc/mounts image/etc/mtab' || fail "make an image"
}

# in_image SRUN-OPTION... PROGRAM runs a step of a new job of alice.
in_image() { as alice login srun -Q -N1 -n1 -w n1 --mem=100 "$@" 2>&1; }

# containers: steps run in the image that their user or the site names, with the
# network and the processes of their job, and without a way to more rights. Batch
# scripts, and steps that want no image, run on the host's files.
containers() {
	local seen host plugstack
	image alice
	host=$(on n1 cat /etc/os-release)
	# shellcheck disable=SC2016
	seen=$(as alice login srun -Q -N2 -n2 --mem=100 --container-image=/home/alice/image sh -c 'cat /etc/os-release; ip -o -4 addr show dev eth0 | grep -c 10.200; cat /proc/1/comm; id -u; pwd' 2>&1 | sort | uniq -c | awk '{ $1 = $1; print }')
	[[ $seen == "2 /home/alice"$'\n'"2 1"$'\n'"2 $(settings id_of alice)"$'\n'"2 berth-pod"$'\n'"2 image of alice" ]] || fail "in an image: $seen"
	seen=$(in_image --container-image=/home/alice/image cat /etc/shadow) && fail "the host's files: $seen"
	[[ $seen == *"No such file"* ]] || fail "the host's files: $seen"
	# shellcheck disable=SC2016
	seen=$(in_image --container-image=/home/alice/image sh -c 'grep -E "^(NoNewPrivs|CapPrm|CapEff)" /proc/self/status; grep -c "^[^ ]* / [^ ]* [^ ]*nosuid,nodev" /proc/mounts' | xargs)
	[[ $seen == "CapPrm: 0000000000000000 CapEff: 0000000000000000 NoNewPrivs: 1 1" ]] || fail "rights: $seen"
	seen=$(echo input | as alice login srun -Q -N1 -n1 --mem=100 --container-image=/home/alice/image sh -c 'cat; cat /etc/resolv.conf | grep -c 10.200.0.1; echo written >written; exit 9' 2>/dev/null)
	[[ $? -eq 9 && $seen == $'input\n1' && $(as alice login cat written) == written ]] || fail "input, names, output and exit code: $seen"
	seen=$(as alice login sh -c 'rm -f written; sbatch -Q -W -N1 -n1 --mem=100 --container-image=/home/alice/image -o slurm.out --wrap "head -n 1 /etc/os-release; srun cat /etc/os-release; srun --container-image=none head -n 1 /etc/os-release" </dev/null; cat slurm.out')
	[[ $seen == "$(head -n 1 <<<"$host")"$'\nimage of alice\n'"$(head -n 1 <<<"$host")" ]] || fail "a batch script and its steps: $seen"
	seen=$(in_image --network-pod=no --container-image=/home/alice/image sh -c 'cat /etc/os-release; readlink /proc/self/ns/net')
	[[ $seen == $'image of alice\n'"$(on n1 readlink /proc/1/ns/net)" ]] || fail "without a separate network: $seen"
	seen=$(from_outside alice -tt login "srun -Q -N1 -n1 -w n1 --mem=100 --pty --container-image=/home/alice/image sh -c 'cat /etc/os-release; test -t 0 && echo a terminal'" </dev/null 2>&1 | tr -d '\r')
	[[ $seen == *"image of alice"*"a terminal"* ]] || fail "a terminal: $seen"
	as alice login ln -sf ../run/systemd/resolve/stub-resolv.conf image/etc/resolv.conf
	seen=$(in_image --container-image=/home/alice/image cat /etc/os-release)
	[[ $seen == *"/etc/resolv.conf in the image /home/alice/image is a link that leads nowhere"*$'\nimage of alice' ]] || fail "a link to nothing: $seen"
	as alice login sh -c 'ln -sf names image/etc/resolv.conf && : >image/etc/names'
	seen=$(in_image --container-image=/home/alice/image grep -c 10.200.0.1 /etc/names)
	[[ $seen == 1 ]] || fail "a link to a file: $seen"
	as alice login sh -c 'rm image/etc/names image/etc/resolv.conf && : >image/etc/resolv.conf'
	image_of_archive
	refused_images
	covered_files
	plugstack=$(settings eval 'echo $state')/etc/slurm/plugstack.conf
	cp "$plugstack" "$out/plugstack"
	# Write in place: hosts would not see a file that replaces it.
	sed '1s|$| image=/home/alice/image|' "$out/plugstack" >"$plugstack"
	seen=$(in_image cat /etc/os-release)
	[[ $seen == "image of alice" ]] || fail "the image of the site: $seen"
	seen=$(in_image --container-image=none cat /etc/os-release)
	[[ $seen == "$host" ]] || fail "none although the site has one: $seen"
	cat "$out/plugstack" >"$plugstack"
	seen=$(in_image cat /etc/os-release)
	[[ $seen == "$host" ]] || fail "without an image: $seen"
}

# image_of_archive: berth's image store unpacks an archive without root, and steps run
# in the result. All files belong to the user, and there is a mount point for each of
# the host's.
image_of_archive() {
	local seen cache=/home/alice/cache bundle=/home/alice/bundle
	seen=$(in_berth_image import --image-cache $cache /srv/images/busybox.tar && in_berth_image bundle --image-cache $cache --mount /home busybox:1.37 $bundle) || fail "unpack an image: $seen"
	seen=$(in_image --container-image=$bundle/rootfs sh -c 'pwd; id -u; ls -l /bin/busybox; test -e /etc/shadow; echo $?; : >/tmp/of-alice && rm /tmp/of-alice; grep -c 10.200.0.1 /etc/resolv.conf' | awk '{ print $NF, $3 }' | xargs)
	[[ $seen == "/home/alice $(settings id_of alice) /bin/busybox alice 1 1" ]] || fail "of an archive: $seen"
	# By its name: from the cache named in the job's variables, and from the default
	# one.
	seen=$(in_berth_image bundle --image-cache $cache --mount /home busybox:1.37) || fail "unpack an image for its name: $seen"
	seen=$(as alice login env BERTH_IMAGE_CACHE=$cache srun -Q -N2 -n2 --mem=100 --container-image=docker.io/library/busybox:1.37 sh -c 'test -e /etc/shadow || ls -l /bin/busybox' 2>&1 | awk '{ print $NF, $3 }' | xargs)
	[[ $seen == "/bin/busybox alice /bin/busybox alice" ]] || fail "by its name: $seen"
	as alice login sh -c "mkdir -p .cache && mv $cache .cache/berth" || fail "move the cache"
	seen=$(as alice login sh -c 'sbatch -Q -W -N1 -n1 --mem=100 --container-image=busybox:1.37 -o slurm.out --wrap "srun ls -l /bin/busybox" </dev/null; cat slurm.out' | awk '{ print $NF, $3 }')
	[[ $seen == "/bin/busybox alice" ]] || fail "a step of a script by its name: $seen"
	seen=$(in_image --container-image=busybox hostname) && fail "it ran: $seen"
	[[ $seen == *"the image busybox: open the directory /home/alice/.cache/berth/bundles-$(settings id_of alice)/busybox:latest/rootfs: No such file"*"'berth image bundle' make it"* ]] || fail "a name of no image: $seen"
	as alice login rm -rf .cache/berth $bundle
}
in_berth_image() { as alice login /srv/berth/bin/berth image "$@" -q 2>&1; }

# covered_files: a directory of the host that is used as an image shows the mounts in
# it, and never the files below these mounts.
covered_files() {
	local seen
	on n1 sh -c 'cd /home && mkdir -p covered/bin covered/proc covered/sys covered/dev covered/tmp covered/home covered/private &&
		cp /bin/busybox covered/bin/cat && echo a secret >covered/private/file && mount -t tmpfs none covered/private && echo mounted >covered/private/other &&
		chmod -R a+rX covered' || fail "cover a file"
	seen=$(in_image --container-image=/home/covered cat /private/other /private/file)
	[[ $seen == *mounted* && $seen == *"No such file"* ]] || fail "what a mount covers: $seen"
	on n1 sh -c 'umount /home/covered/private && rm -rf /home/covered' || fail "remove what was covered"
}

# refused_images: an unusable image ends the step with the reason.
refused_images() {
	local seen path
	for path in ./image '../image' 'an image' ''; do
		seen=$(in_image "--container-image=$path" hostname) && fail "it ran: $seen"
		[[ $seen == *"write the absolute path of a directory, the name of an image, or none"* ]] || fail "no path and no name, '$path': $seen"
	done
	seen=$(in_image --container-image=/srv/images/busybox.tar hostname) && fail "it ran: $seen"
	[[ $seen == *"open the directory /srv/images/busybox.tar: Not a directory: 'berth image import'"* ]] || fail "an archive: $seen"
	seen=$(in_image --container-image=/home/alice/none hostname) && fail "it ran: $seen"
	[[ $seen == *"this step has no container: open the directory /home/alice/none: No such file"* ]] || fail "none there: $seen"
	seen=$(as bob login srun -Q -N1 -n1 --mem=100 --container-image=/home/alice/image hostname 2>&1) && fail "bob ran $seen"
	[[ $seen == *"open the directory /home/alice/image: Permission denied"* ]] || fail "another user's: $seen"
	for path in / /usr/..; do
		seen=$(in_image --network-pod=no --container-image=$path hostname) && fail "it ran in $path: $seen"
		[[ $seen == *"this step has no container: $path is the root of the host"* ]] || fail "the host's root: $seen"
	done
	# In a pod the task that opens it has no /proc/self.
	seen=$(in_image --network-pod=no --container-image=/proc/self/root hostname) && fail "it ran: $seen"
	[[ $seen == *"open the directory /proc/self/root: Too many levels of symbolic links"* ]] || fail "what only root may follow: $seen"
	as alice login rmdir image/sys
	seen=$(in_image --container-image=/home/alice/image hostname) && fail "it ran: $seen"
	[[ $seen == *"mount /sys in the directory /home/alice/image: No such file or directory: mkdir"* ]] || fail "without /sys: $seen"
	# A link cannot lead out of the image: the image's own /etc is covered.
	as alice login ln -s /etc image/sys
	seen=$(in_image --container-image=/home/alice/image sh -c 'grep -c " /etc " /proc/mounts; cat /etc/os-release 2>/dev/null; true')
	[[ $seen == 1 ]] || fail "a link leads out of the image: $seen"
	as alice login sh -c 'rm image/sys && mkdir image/sys'
}

# many_mounts: mounts in plugstack.conf beyond the limit are omitted, and each step
# reports it.
many_mounts() {
	local i seen plugstack
	image alice
	as alice login mkdir -p image/opt image/srv
	plugstack=$(settings eval 'echo $state')/etc/slurm/plugstack.conf
	cp "$plugstack" "$out/plugstack"
	sed "1s|\$| $(for ((i = 0; i < 14; i++)); do printf 'mount=/home '; done) mount=/srv mount=/opt|" "$out/plugstack" >"$plugstack"
	# shellcheck disable=SC2016
	seen=$(in_image --container-image=/home/alice/image sh -c 'echo shown $(grep -c " /srv/site " /proc/mounts) and $(grep -c " /opt " /proc/mounts)')
	[[ $seen == *"shown 1 and 0"* ]] || fail "the sixteenth and the seventeenth: $seen"
	[[ $seen == *"mount=/opt is left out: there may be 16"* ]] || fail "nothing is said: $seen"
	# A mount that contains berthd's socket, and one that this host does not have.
	as alice login mkdir -p image/run
	sed '1s|$| mount=/run|' "$out/plugstack" >"$plugstack"
	seen=$(in_image --container-image=/home/alice/image sh -c 'stat -c %F /run/berthd/berthd.sock')
	[[ $seen == socket ]] || fail "berthd's socket in an image: $seen"
	sed '1s|$| mount=/scratch|' "$out/plugstack" >"$plugstack"
	seen=$(in_image --container-image=/home/alice/image hostname) && fail "it ran: $seen"
	[[ $seen == *"show /scratch of the host in an image: No such file or directory: it is among the mounts"* ]] || fail "a mount that is not there: $seen"
	cat "$out/plugstack" >"$plugstack"
	as alice login rmdir image/opt image/srv image/run
}
