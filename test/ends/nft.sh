#!/bin/sh
# nft as on a kernel without nft_fib_ipv6 and nft_reject_ipv6.
rules=$(cat)
case $rules in
*ip6*)
	echo 'Error: Could not process rule: No such file or directory' >&2
	exit 1
	;;
esac
printf '%s\n' "$rules" | exec /srv/ends/dist/libexec/berth/nft "$@"
