#!/bin/bash
# Queries the API server continuously until FILE exists and the server answers.
# Prints the longest time without an answer, in milliseconds.
#   ask.sh FILE
set -u
now() { echo $((${EPOCHREALTIME/./} / 1000)); }
asked=0 answered=0 longest=0 last=$(now)
ask() {
	local at
	((++asked))
	kubectl get --raw /api/v1/namespaces/default --request-timeout=2s >/dev/null 2>&1 || return
	at=$(now)
	((++answered, longest = at - last > longest ? at - last : longest))
	last=$at
}
echo asking
until [[ -e $1 ]]; do
	ask
	sleep 0.02
done
deadline=$((SECONDS + 20))
until ask; do
	((SECONDS < deadline)) || exit 1
	sleep 0.02
done
echo "answers again"
echo "longest time without an answer: $longest ms, $answered of $asked answered"
