#!/bin/bash
# paced-reader.sh CMD...: reads CMD's output, a megabyte and a pause. Prints the number of
# bytes and CMD's exit code.
"$@" | {
	bytes=0
	while n=$(head -c 1M | wc -c) && ((n > 0)); do
		((bytes += n))
		sleep 0.4
	done
	echo "$bytes bytes were read"
}
echo "$SLURMD_NODENAME ended with ${PIPESTATUS[0]}"
