package pilots

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/elastic/wishes"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// Records are ConfigMaps, one for each pilot, with the pilot's UID as name. A Lease has no room
// for the request, and one ConfigMap for all pilots would exceed its 1 MiB with 4,000 of them.
// As they are in the cluster, they survive whatever the cluster survives: a killed loop, a lost
// head, and a restart with --state.
const (
	uidPrefix = "pilot-"
	namespace = metav1.NamespaceSystem
)

// record holds the facts about a pilot that the cluster keeps.
type record struct {
	UID string
	plan.Request
	status
}

// status is the part of a record that changes.
type status struct {
	// Job is the number of the job, empty before it is submitted.
	Job string
	// Released is true once the job may start, Joined once a node has been ready, and Leaving once
	// the job is to be cancelled.
	Released, Joined, Leaving bool
	// State is Slurm's word, Reason why a job waits, and Start when Slurm expects it to start.
	State, Reason, Start string
	// Hosts lists the hosts of the job, in Slurm's short form.
	Hosts string
}

// started reports whether Slurm has started the job.
func (s status) started() bool { return s.State != "" && s.State != slurm.Pending }

// configMap returns the record as an object.
func (r record) configMap(job string) (*corev1.ConfigMap, error) {
	request, err := json.Marshal(r.Request)
	if err != nil {
		return nil, err
	}
	flag := func(set bool) string {
		if set {
			return "true"
		}
		return ""
	}
	data := map[string]string{cluster.PilotRequest: string(request)}
	for key, value := range map[string]string{
		cluster.PilotJob: r.Job, "released": flag(r.Released), "joined": flag(r.Joined), cluster.PilotLeaving: flag(r.Leaving),
		cluster.PilotState: r.State, cluster.PilotReason: r.Reason, cluster.PilotStart: r.Start, cluster.PilotHosts: r.Hosts,
	} {
		if value != "" {
			data[key] = value
		}
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: r.UID, Namespace: namespace, Labels: map[string]string{cluster.PilotLabel: job}},
		Data:       data,
	}, nil
}

// readRecord reads a record. Others may write ConfigMaps, too: it returns an error if the record
// would give a command of Slurm other words than the loop does.
func readRecord(object *corev1.ConfigMap) (record, error) {
	data := object.Data
	r := record{UID: object.Name, status: status{
		Job: data[cluster.PilotJob], Released: data["released"] != "", Joined: data["joined"] != "", Leaving: data[cluster.PilotLeaving] != "",
		State: data[cluster.PilotState], Reason: data[cluster.PilotReason], Start: data[cluster.PilotStart], Hosts: data[cluster.PilotHosts],
	}}
	if err := json.Unmarshal([]byte(data[cluster.PilotRequest]), &r.Request); err != nil {
		return r, fmt.Errorf("read the record of pilot %s: %w", object.Name, err)
	}
	r.Nodes = max(1, r.Nodes)
	if strings.Trim(r.Job, "0123456789") != "" {
		return r, fmt.Errorf("read the record of pilot %s: %q is not the number of a job", object.Name, r.Job)
	}
	if err := wishes.CheckOptions(r.Options); err != nil {
		return r, fmt.Errorf("read the record of pilot %s: %w", object.Name, err)
	}
	return r, nil
}

// requestMark begins the line of a batch script that holds the request of the pilot.
const requestMark = "# request: "

// requestLine returns the line with a request. JSON has no line breaks.
func requestLine(request plan.Request) string {
	encoded, err := json.Marshal(request)
	if err != nil {
		return "" // adopt does without
	}
	return requestMark + string(encoded) + "\n"
}

// requestOf reads the request of a pilot from its batch script. It refuses a request that would give
// a command of Slurm other words than the loop does.
func (n Node) requestOf(uid string) (request plan.Request, err error) {
	const most = 1 << 20
	file, err := os.Open(filepath.Join(queue.Folder(n.State, uid), queue.ScriptName+"-"+scriptVersion))
	if err != nil {
		return request, err
	}
	defer file.Close()
	script, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return request, err
	}
	_, line, found := strings.Cut(string(script), "\n"+requestMark)
	if !found {
		return request, fmt.Errorf("read the request of pilot %s: its batch script has none", uid)
	}
	line, _, _ = strings.Cut(line, "\n")
	if err := json.Unmarshal([]byte(line), &request); err != nil {
		return request, fmt.Errorf("read the request of pilot %s: %w", uid, err)
	}
	request.Nodes = max(1, request.Nodes)
	return request, wishes.CheckOptions(request.Options)
}

// load reads the records of an earlier loop.
func (l *Loop) load(ctx context.Context) error {
	found, err := l.core.ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: cluster.PilotLabel})
	if err != nil {
		return fmt.Errorf("list the records of pilots: %w", err)
	}
	about := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: cluster.ElasticName, Namespace: namespace, Labels: map[string]string{cluster.PilotLabel: l.Job}},
		Data:       map[string]string{cluster.ElasticSeats: strconv.Itoa(l.Seats)},
	}
	if err := l.put(ctx, about, true); err != nil {
		return fmt.Errorf("write how many nodes may join: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range found.Items {
		if found.Items[i].Name == cluster.ElasticName {
			continue
		}
		r, err := readRecord(&found.Items[i])
		if err == nil && (found.Items[i].Labels[cluster.PilotLabel] != l.Job || clusterOf(r.UID) != l.Job) {
			err = fmt.Errorf("pilot %s is of an earlier cluster, whose state this one continues", r.UID)
		}
		if err != nil {
			// Its job, if there is one, is handled as one without a record.
			l.Log.Warn(err.Error())
			_ = l.core.ConfigMaps(namespace).Delete(ctx, found.Items[i].Name, metav1.DeleteOptions{})
			continue
		}
		l.pilots[r.UID] = &pilot{record: r, saved: r.status, exists: true, pods: int(r.Size.Pods)}
	}
	return nil
}

// save writes a record to the cluster.
func (l *Loop) save(ctx context.Context, r record, exists bool) error {
	object, err := r.configMap(l.Job)
	if err != nil {
		return err
	}
	if err := l.put(ctx, object, exists); err != nil {
		return fmt.Errorf("write the record of pilot %s: %w", r.UID, err)
	}
	return nil
}

// put updates an object that may exist, or creates it.
func (l *Loop) put(ctx context.Context, object *corev1.ConfigMap, exists bool) (err error) {
	client := l.core.ConfigMaps(namespace)
	if exists {
		_, err = client.Update(ctx, object, metav1.UpdateOptions{})
	}
	if !exists || apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

// remove deletes a record and the files of its job.
func (l *Loop) remove(ctx context.Context, uid string) error {
	err := l.core.ConfigMaps(namespace).Delete(ctx, uid, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the record of pilot %s: %w", uid, err)
	}
	if err := l.Forget(uid); err != nil {
		l.Log.Debug(fmt.Sprintf("remove the files of pilot %s: %v", uid, err))
	}
	return nil
}

// hopeless holds Slurm's reasons for jobs that never start as they are. Slurm accepts some of them
// at the submission (EnforcePartLimits=NO). A reason with "PerJob" is a limit for one job.
var hopeless = []string{
	"BadConstraints", "PartitionTimeLimit", "PartitionNodeLimit", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed",
}

// note records the state of a job, and gives up one that never starts. The caller holds mu.
func (l *Loop) note(p *pilot, state queue.State) {
	if state.State == slurm.Pending && !p.Leaving && (slices.Contains(hopeless, state.Reason) || strings.Contains(state.Reason, "PerJob")) {
		l.refuse(p, "Slurm never starts the job of a node for it: "+state.Reason)
		p.Leaving = true
	}
	if queue.Ended(state.State) {
		p.final = &state
	}
	p.State, p.Reason, p.Hosts, p.Start = state.State, state.Reason, state.Nodes, ""
	if !state.ExpectedStart.IsZero() {
		// Slurm's expectation changes by seconds.
		p.Start = state.ExpectedStart.Truncate(time.Minute).Format("2006-01-02T15:04")
	}
	if state.State != slurm.Pending {
		p.Reason = ""
	}
}
