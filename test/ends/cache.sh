# shellcheck shell=bash
# The folder of layers that runs share.

# cached HOST FOLDER lists the layers there, and what is unfinished, in use, damaged
# or partial.
cached() { "$bed" run --user alice "$1" sh -c "cd $2/layers-1 && ls sha256; ls unfinished jobs damaged partial | grep -v ':\$' | grep ." 2>/dev/null; }

# keeping NAME HOST FOLDER begins a run on a host that ends when the folder has a
# layer.
keeping() {
	begin "$1" alice login srun -N1 -w "$2" --mem=1500 berth run --image-cache "$3" -f $here/exit.yaml --image $image -- \
		sh -c "kubectl wait --for=condition=complete --timeout=90s job/exit && until ls $3/layers-1/sha256/*.erofs; do sleep 0.1; done"
}

# Jobs on three hosts store the same layer at the same time: the result is one
# complete layer.
cache_together() {
	local folder=/home/alice/together host
	for host in n1 n2 n3; do keeping "on-$host" $host $folder; done
	for host in n1 n2 n3; do ends "on-$host" 0; done
	[[ $(cached n1 $folder | wc -l) == 1 ]] || fail "not one layer and nothing else: $(cached n1 $folder)"
	begin verify alice n1 berth image verify --image-cache $folder
	ends verify 0
	"$bed" run --user alice n1 rm -r $folder
}

# A run is killed while it copies a large layer into the folder: no partial file
# stays. If it was killed too late, the layer is complete.
cache_killed() {
	local folder=/home/alice/killed
	begin a alice n1 berth run --image-cache $folder -f $here/loop.yaml --image $image --image /srv/ends/images/mpi.tar -- sleep 1000
	begin watch root n1 sh -c "until find $folder -type f -size +2M | grep -q .; do sleep 0.01; done 2>/dev/null; kill -KILL \$(pgrep -f '^[^ ]*berth run ')"
	ends watch 0
	ends a 137
	poll 60 no_job_in n1 $folder || fail "left of a killed run: $(cached n1 $folder)"
	begin verify alice n1 berth image verify --image-cache $folder
	ends verify 0
	"$bed" run --user alice n1 rm -r $folder
}

# no_job_in HOST FOLDER: only complete layers are there.
no_job_in() { "$bed" run --user alice "$1" sh -c "cd $2/layers-1 && test -z \"\$(ls -A unfinished jobs damaged partial | grep -v ':\$' | grep .)\""; }

# A full disk is reported once, stops no run, and holds no partial layer.
cache_full() {
	local disk=/var/tmp/small
	node sh -c "mkdir -p $disk && mount -t tmpfs -o size=700k,mode=1777 tmpfs $disk" || fail "no small disk"
	begin a alice n1 berth run --image-cache $disk/cache -f $here/loop.yaml --image $image
	says a started
	says a "layers of images are not kept in $disk/cache: publish layer"
	signal TERM supervisor
	ends a 143
	[[ -z $(cached n1 $disk/cache) ]] || fail "left in the folder: $(cached n1 $disk/cache)"
	begin b alice n1 berth image import --image-cache $disk/cache $image
	ends b 73
	says b 'no space left on device; name another folder with --image-cache DIR'
	begin registry alice login /srv/ends/registry -listen :5000 team/busybox:1.37=/srv/ends/images/pulled.tar
	says registry 'registry on'
	begin c alice n1 berth image pull --image-cache $disk/cache --registry login:5000=http://login:5000 login:5000/team/busybox:1.37
	ends c 73
	says c 'no space left on device; name another folder with --image-cache DIR'
	[[ -z $(cached n1 $disk/cache) ]] || fail "left in the folder: $(cached n1 $disk/cache)"
	node sh -c "umount $disk && rmdir $disk"
}

# A layer was changed on disk: pods get an error, never other content. berth moves
# the layer away, and the next run fetches it again.
cache_damaged() {
	local folder=/home/alice/changed
	keeping a n1 $folder
	ends a 0
	"$bed" run --user alice n1 sh -c "cd $folder/layers-1/sha256 && chmod u+w * && dd if=/dev/zero of=\$(ls) bs=64k seek=4 count=8 conv=notrunc" 2>/dev/null || fail "change the layer"
	begin b alice n1 berth run --image-cache $folder -f $here/loop.yaml --image $image -- sleep 1000
	says b 'is damaged, and files of pods cannot be read'
	signal TERM supervisor
	ends b 143
	keeping c n2 $folder
	ends c 0
	[[ $(cached n1 $folder | wc -l) == 2 ]] || fail "not a layer, and one put aside: $(cached n1 $folder)"
	begin verify alice n1 berth image verify --image-cache $folder
	ends verify 0
	"$bed" run --user alice n1 rm -rf $folder
}
