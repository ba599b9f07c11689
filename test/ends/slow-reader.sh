#!/bin/bash
# slow-reader.sh FILE CMD...: reads a megabyte of CMD's output, waits for FILE, and
# reads the rest. Prints the last line, the number of bytes and CMD's exit code.
file=$1
shift
"$@" | {
	if [[ $(head -c 1M | wc -c) == 1048576 ]]; then
		echo reading has stopped >&2
		until [[ -e $file ]]; do sleep 0.1; done
	fi
	awk '{ bytes += length + 1 } END { print; print bytes + 1048576, "bytes were read" }'
}
echo "$SLURMD_NODENAME ended with ${PIPESTATUS[0]}"
