# Starts and ends pods one after the other, while signals are sent to all processes
# that start pods.
set -e
kubectl wait --for=condition=Ready --timeout=60s pod/loop
set -- grep -E 'Sig(Blk|Ign)' /proc/self/status
kubectl exec loop -- "$@" >signals
for i in 1 2 3 4 5; do
	kubectl run "pod$i" --image=busybox:1.37 --restart=Never --command -- "$@"
	kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=30s "pod/pod$i"
done
kubectl logs pod1 >>signals
kubectl delete pod --all --timeout=60s
kubectl get events --field-selector type=Warning
cat signals
# Without the real-time signals: children of make ignore one of glibc's own (32).
[ "$(grep -cE '00000000[08]0000000$' signals)" = 4 ]
rm signals
[ -z "$(kubectl get events --field-selector type=Warning -o name)" ] && echo no pod noticed
