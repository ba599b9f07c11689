# Specs that need the cluster for themselves, over every area that has some: one regular
# expression a line, each meaning exactly one spec (./verify). Run them with -p 1.
Daemon set \[Serial\] should run and stop simple daemon
Daemon set \[Serial\] should rollback without unnecessary restarts
removing taint cancels eviction
NodeSelector is respected if matching
validates resource limits of pods that are allowed to run
validates basic preemption works
ensure that all pods are removed when a namespace is deleted
