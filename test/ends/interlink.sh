# shellcheck shell=bash
# Pods that interLink sends from another Kubernetes.

# The templates of interLink's test set succeed, although the server is killed meanwhile.
# Pods reach each other, and the user can exec into them. When the job ends, the virtual
# node shows the pods as failed.
interlink() {
	local socket=/tmp/interlink.sock serve
	serve=(alice login berth serve interlink --socket "$socket")
	begin a alice login srun -N1 --mem=1500 berth up --foreground --image /srv/ends/images/vktest.tar
	says a 'is up'
	begin s "${serve[@]}"
	says s 'pods go to the cluster'
	begin t alice login /srv/ends/interlink -socket "$socket" -end -without 060-init-container,070-rclone-bind -except 'Python 3.11' /srv/ends/templates
	says t 'ok 010-simple-python'
	on_login pkill -KILL -f '^berth serve'
	ends s 137
	begin s "${serve[@]}"
	says s 'pods go to the cluster'
	timeout=240 says t 'waiting for the end'
	[[ $failed == no ]] || return
	into e alice shell -- sh -c 'k() { kubectl --namespace interlink-interlink "$@"; }
		pod() { k get pods -o name | grep "^pod/$1-"; }
		k get events --field-selector reason=InterLink
		k exec "$(pod client)" -- python -c "import urllib.request as u; print(u.urlopen(\"http://$(k get "$(pod web)" -o jsonpath={.status.podIP}):8080\").status)"
		until [ "$(k get pods,secrets -o name | wc -l)" = 2 ]; do sleep 0.1; done; echo "only two pods are left"'
	ends e 0
	says e 'kubectl exec'
	says e 200
	says e 'only two pods are left'
	"$bed" run --user alice login scancel "$(job)"
	ends t 0
	says t 'web failed: the berth cluster has ended: job'
	ends a 143 15 1 0 69 137
	on_login pkill -TERM -f '^berth serve'
	ends s 0
}

# What 1,000 pods cost the plugin. Only "test/ends/run interlink_cost" runs it.
interlink_cost() {
	local socket=/tmp/interlink.sock pid
	longest_run=1500 timeout=1500
	begin a alice login srun -N1 --mem=1500 berth up --foreground --image /srv/ends/images/vktest.tar
	says a 'is up'
	begin s alice login berth serve interlink --socket "$socket"
	says s 'pods go to the cluster'
	pid=$("$bed" run --user alice login pgrep -f '^berth serve')
	begin t alice login /srv/ends/interlink -socket "$socket" -cost 1000 -process "$pid"
	ends t 0
	cat "$out/t"
	"$bed" run --user alice login scancel "$(job)"
	ends a 143 15 1 0 69 137
	on_login pkill -TERM -f '^berth serve'
	ends s 0
}
