#!/bin/bash
# Checks who owns the files that pods write to folders of the host:
#   data.sh REFUSED|ALLOWED
set -uo pipefail
cd "$(dirname "$0")"

fail() { echo "FAILED: $*"; exit 1; }
in_pod() { kubectl exec "$1" -- sh -c "$2" 2>&1; }
owner() { stat -c %U "$1"; }
event() { kubectl get events --field-selector "involvedObject.name=$1,reason=$2" -o jsonpath='{.items[*].message}'; }
await_event() {
	local i
	for ((i = 0; i < 100; i++)); do
		[[ -z $(event "$@") ]] || return 0
		sleep 0.1
	done
	fail "no event $2 of $1: $(kubectl get events)"
}

mkdir -p /srv/shared/alice /var/tmp/of-alice && chmod 777 /srv/shared/alice /var/tmp/of-alice || exit 1
kubectl apply -f data.yaml && kubectl wait --for=condition=Ready --timeout=30s pod/root pod/other || fail "$(kubectl get events)"

in_pod root 'echo hello >/shared/of-root && echo hello >/local/of-root' || fail "root cannot write"
[[ $(owner /srv/shared/alice/of-root) == alice && $(owner /var/tmp/of-alice/of-root) == alice ]] || fail "what root writes is not the user's: $(ls -l /srv/shared/alice /var/tmp/of-alice)"
[[ $(in_pod other 'cat /shared/of-root') == hello ]] || fail "another user cannot read"
in_pod other 'echo hello >/own/file' || fail "another user cannot write to a volume of the pod's own"
in_pod other 'echo hello >/local/of-other' || fail "another user cannot write to a local folder"
[[ $(owner /var/tmp/of-alice/of-other) == UNKNOWN ]] || fail "what another user writes belongs to $(owner /var/tmp/of-alice/of-other)"

if [[ $1 == ALLOWED ]]; then
	in_pod other 'echo hello >/shared/of-other' || fail "another user is refused"
	in_pod root 'su -s /bin/sh www-data -c "touch /shared/of-setuid" && chown 7 /shared/of-root' || fail "root cannot change its user"
	in_pod root 'rm /shared/* /local/*' || fail "root cannot remove what other users wrote"
	[[ -z $(event other ForeignOwnerRefused)$(event root UserPinned) ]] || fail "$(kubectl get events)"
else
	await_event other ForeignOwnerRefused
	await_event root UserPinned
	[[ $(in_pod other 'echo hello >/shared/of-other') == *"Read-only file system"* ]] || fail "another user is not refused"
	[[ $(in_pod root 'su -s /bin/sh www-data -c "touch /shared/of-setuid"') == *"not permitted"* ]] || fail "root changes its user"
	[[ $(in_pod root 'chown 7 /shared/of-root') == *"not permitted"* ]] || fail "root gives a file away"
	in_pod root 'unshare -U -r su -s /bin/sh www-data -c "touch /shared/of-other"'
	[[ ! -e /srv/shared/alice/of-other ]] || fail "a user namespace gives other users"
	[[ $(in_pod root 'grep NoNewPrivs /proc/self/status') == *1 ]] || fail "root may gain privileges"
	in_pod root 'rm /shared/* /local/*' || fail "root cannot remove what other users wrote"
fi
echo "files have the owners that they should"
