#!/bin/sh
# The command of a run: applies the manifest, waits for the end of its Job, and
# fails if the Job does. It repeats requests that fail.
until kubectl apply -f "$1"; do sleep 0.3; done
until end=$(kubectl get job work -o 'jsonpath={.status.conditions[?(@.status=="True")].type}') &&
	case $end in *Complete* | *Failed*) ;; *) false ;; esac; do sleep 0.3; done
echo "the Job has ended: $end"
case $end in *Complete*) ;; *) exit 1 ;; esac
