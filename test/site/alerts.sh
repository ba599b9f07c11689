# shellcheck shell=bash
# The alerts and the dashboard for Prometheus.

# alerts: Debian's Prometheus takes the rules, collects from all berthds and from etcd, and each
# query of the rules and of the dashboard finds data. A berthd that is killed and an etcd that is
# away bring their alerts. promtool compares thresholds and durations with test/site/alerts.yaml.
alerts() {
	local seen query host
	command -v prometheus promtool >/dev/null || { fail "there is no Prometheus: scripts/install-deps bed"; return; }
	mkdir -p "$stage/prometheus"
	cp packaging/site/berth-site.rules.yaml "$stage/prometheus/rules.yaml"
	cp test/site/alerts.yaml "$stage/prometheus/"
	seen=$(on ctl promtool test rules /srv/site/prometheus/alerts.yaml 2>&1) || fail "promtool: $seen"
	cat >"$stage/prometheus/prometheus.yaml" <<-END
		global: {scrape_interval: 1s, evaluation_interval: 1s}
		rule_files: [rules.yaml]
		scrape_configs:
		- job_name: berthd
		  static_configs: [{targets: [$(printf '"%s:9419", ' "${hosts[@]}")]}]
		- job_name: berth-etcd
		  scheme: https
		  tls_config: {ca_file: /etc/berth/ca.crt, cert_file: /etc/berth/node.crt, key_file: /etc/berth/node.key}
		  static_configs: [{targets: ["127.0.0.1:2381"]}]
	END
	chmod -R a+rX "$stage/prometheus"
	stop_site
	for host in "${hosts[@]}"; do configuration | sed 's|^metrics: .*|metrics: 0.0.0.0:9419|' | on "$host" sh -c 'cat >/run/observed.yaml'; done
	start_site --config /run/observed.yaml
	"$bed" run ctl prometheus --config.file /srv/site/prometheus/prometheus.yaml --storage.tsdb.path /run/prometheus --web.listen-address 127.0.0.1:9090 >"$out/prometheus.log" 2>&1 </dev/null &
	daemons[prometheus]=$!
	poll 60 finds 'count(up == 1) == 5' || fail "Prometheus does not collect: $(found up) $(tail -n 3 "$out/prometheus.log")"
	job alice
	poll 20 finds 'sum(berthd_pods) == 2' || fail "pods: $(found berthd_pods)"
	job bob
	poll 20 finds 'sum(rate(berthd_attach_seconds_count[1m])) > 0' || fail "new pods: $(found berthd_attach_seconds_count)"
	while read -r query; do
		# What is compared with a threshold must be there.
		query=$(sed -E 's/ (==|>) [0-9.]+$//' <<<"$query")
		poll 20 finds "$query" || fail "the query '$query' finds $(found "$query")"
	done < <(asked /api/v1/rules | python3 -c 'import json, sys
for group in json.load(sys.stdin)["data"]["groups"]:
    for rule in group["rules"]:
        print(rule["query"])
for panel in json.load(open(sys.argv[1]))["panels"]:
    for target in panel["targets"]:
        print(target["expr"])' packaging/site/berth-site.dashboard.json)
	[[ $(asked /api/v1/alerts) == *'"alerts":[]'* ]] || fail "alerts of a site that is well: $(asked /api/v1/alerts)"
	kill_daemon n2
	poll 20 alerted BerthdDown n2 || fail "berthd of n2 is killed: $(asked /api/v1/alerts)"
	stop_etcd
	for host in BerthEtcdMemberDown BerthdWithoutEtcd; do
		poll 60 alerted $host || fail "etcd is away: $(asked /api/v1/alerts)"
	done
	start_etcd
	start n2 n2 run --config /run/observed.yaml
	poll 30 registered || fail "etcd does not come back"
	poll 60 eval '[[ $(asked /api/v1/alerts) == *"\"alerts\":[]"* ]]' || fail "alerts when all is well again: $(asked /api/v1/alerts)"
	kill "${daemons[prometheus]}"
	wait "${daemons[prometheus]}"
	unset "daemons[prometheus]"
	on ctl rm -r /run/prometheus
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 settled || fail "the jobs do not end"
	stop_site
	start_site
}

# asked PATH [DATA] prints an answer of Prometheus.
asked() { on ctl curl -sS -G "http://127.0.0.1:9090$1" --data-urlencode "${2:-none=}" 2>&1; }
found() { asked /api/v1/query "query=$1"; }
# finds QUERY reports whether the query finds a series, and no value is missing (NaN).
finds() { [[ $(found "$1") == *'"status":"success"'*'"value":'* ]]; }
# alerted NAME [HOST] reports whether an alert is pending, as its duration is not awaited.
alerted() { [[ $(asked /api/v1/alerts) == *"\"alertname\":\"$1\"${2:+,\"instance\":\"$2:9419\"}"* ]]; }
