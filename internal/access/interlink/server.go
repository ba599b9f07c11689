package interlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
)

const (
	// maxBody is the maximum size of a request in bytes. A request may contain several
	// ConfigMaps of 1 MiB, encoded in base64, and repeat them for each container.
	maxBody = 32 << 20
	// maxQueries is the number of pods of one /status request that the server queries at
	// the same time.
	maxQueries = 16
)

// Server serves the requests of interLink.
type Server struct {
	connection *connection
	log        *slog.Logger
	// level is the Pod Security level of the namespaces.
	level string
	// host is this host's name, for messages.
	host string
	// removed holds the pods that must not be created any more.
	removed removed
	// elsewhere deletes pods in clusters that the server does not send pods to.
	elsewhere elsewhere
}

// New returns a server that creates pods in the cluster of a finder. level is their Pod
// Security level (privileged, baseline or restricted), and host the name of this host for
// messages.
func New(finder Finder, level, host string, log *slog.Logger) *Server {
	return &Server{connection: newConnection(finder, log), log: log, level: level, host: host}
}

// Handler returns the handler of interLink's plugin API. The virtual node can use it, too,
// instead of interLink's API server.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /create", s.serveCreate)
	for _, method := range []string{"POST", "DELETE"} { // from the API server, from the virtual node
		mux.HandleFunc(method+" /delete", s.serveDelete)
	}
	for _, method := range []string{"GET", "POST"} {
		mux.HandleFunc(method+" /status", s.serveStatus)
		mux.HandleFunc(method+" /getLogs", s.serveLogs)
		mux.HandleFunc(method+" /pinglink", s.servePing)
	}
	mux.HandleFunc("POST /updateCache", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "there is no cache")
	})
	return mux
}

// refusal wraps an error of a request that would fail again.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// replyError replies with an error. interLink shows the text in the status of the pod.
func (s *Server) replyError(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	var refused *refusal
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &refused):
		code = http.StatusUnprocessableEntity
	case errors.Is(err, errNoCluster), errors.Is(err, errElsewhere):
		code = http.StatusServiceUnavailable
	case errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest:
		code = int(status.Status().Code)
	}
	if !errors.Is(err, errNoCluster) { // connection.set has logged it
		s.log.Warn(strings.TrimPrefix(r.URL.Path, "/") + ": " + err.Error())
	}
	http.Error(w, "berth: "+err.Error(), code)
}

// readBody returns the body of a request. The error is a refusal.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, &refusal{fmt.Errorf("read the request: %w", err)}
	}
	return content, nil
}

// reply sends a value as JSON.
func (s *Server) reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		s.log.Debug("send a reply: " + err.Error())
	}
}

const (
	// retryLimit bounds the time of all attempts of a request. interLink waits two
	// minutes for a reply, and does not repeat the request.
	retryLimit = 90 * time.Second
	retryPause = 500 * time.Millisecond
	// discardLimit bounds the time to delete the pod of a failed request.
	discardLimit = 10 * time.Second
)

// retry repeats an idempotent action after temporary errors, such as while the API server
// restarts, for retryLimit. It returns the last error.
func retry(ctx context.Context, action func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, retryLimit)
	defer cancel()
	for {
		err := action(ctx)
		if err == nil || !isTemporary(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryPause):
		}
	}
}

// isTemporary reports whether an action may succeed after this error: the API server did not
// reply, was overloaded, or had an internal error.
func isTemporary(err error) bool {
	if errors.As(err, new(*refusal)) || errors.Is(err, errElsewhere) {
		return false
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
	}
	return true
}

func (s *Server) serveCreate(w http.ResponseWriter, r *http.Request) {
	content, err := readBody(w, r)
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	request, err := readCreate(content)
	if err != nil {
		s.replyError(w, r, &refusal{err})
		return
	}
	// Complete the pod even if the client closes the connection.
	var reply createReply
	err = retry(context.WithoutCancel(r.Context()), func(ctx context.Context) (err error) {
		reply, err = s.create(ctx, request)
		return err
	})
	if err != nil {
		s.discard(context.WithoutCancel(r.Context()), &request.Pod)
		s.replyError(w, r, fmt.Errorf("pod %s/%s: %w", request.Pod.Namespace, request.Pod.Name, err))
		return
	}
	s.reply(w, reply)
}

func (s *Server) serveDelete(w http.ResponseWriter, r *http.Request) {
	content, err := readBody(w, r)
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	pod, err := readPod(content)
	if err != nil {
		s.replyError(w, r, &refusal{err})
		return
	}
	err = retry(context.WithoutCancel(r.Context()), func(ctx context.Context) error { return s.remove(ctx, pod) })
	if err != nil {
		s.replyError(w, r, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
		return
	}
	s.reply(w, "deleted")
}

func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request) {
	content, err := readBody(w, r)
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	pods, err := readPods(content)
	if err != nil {
		s.replyError(w, r, &refusal{err})
		return
	}
	if len(pods) == 0 {
		s.servePing(w, r) // this is the ping of interLink's API server
		return
	}
	cluster, _ := s.connection.get() // status gives the reason why there is none
	found := make([]*podStatus, len(pods))
	problems := make([]error, len(pods))
	var asking sync.WaitGroup
	free := make(chan struct{}, maxQueries)
	for i := range pods {
		free <- struct{}{}
		asking.Go(func() {
			defer func() { <-free }()
			found[i], problems[i] = s.status(r.Context(), cluster, &pods[i])
		})
	}
	asking.Wait()
	if err := errors.Join(problems...); err != nil {
		s.replyError(w, r, err)
		return
	}
	statuses := []*podStatus{}
	for _, status := range found {
		if status != nil {
			statuses = append(statuses, status)
		}
	}
	s.reply(w, statuses)
}

func (s *Server) serveLogs(w http.ResponseWriter, r *http.Request) {
	content, err := readBody(w, r)
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	request, err := readLogs(content)
	if err != nil {
		s.replyError(w, r, &refusal{err})
		return
	}
	log, err := s.openLog(r.Context(), request)
	if err != nil {
		s.replyError(w, r, fmt.Errorf("log of pod %s/%s: %w", request.Namespace, request.PodName, err))
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain")
	// interLink waits two minutes for the header, and a log may have no output for longer.
	controller := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = controller.Flush()
	buffer := make([]byte, 32<<10)
	for {
		n, err := log.Read(buffer)
		if n > 0 {
			if _, failed := w.Write(buffer[:n]); failed != nil {
				return
			}
			_ = controller.Flush()
		}
		if err != nil {
			return
		}
	}
}

// openLog opens the log of a container. Without a name, it is the first container.
func (s *Server) openLog(ctx context.Context, request logRequest) (io.ReadCloser, error) {
	cluster, err := s.connection.get()
	if err != nil {
		return nil, err
	}
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: request.PodName}}
	foreign.UID = types.UID(request.PodUID)
	pod, err := find(ctx, cluster, foreign)
	if err != nil {
		return nil, err
	}
	options := request.apiOptions()
	if options.Container == "" {
		options.Container = pod.Spec.Containers[0].Name
	}
	return cluster.API.Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
}

// servePing replies with the resources of the cluster, or with the reason why there is
// no cluster. interLink copies the reply to the condition of the virtual node.
func (s *Server) servePing(w http.ResponseWriter, r *http.Request) {
	cluster, err := s.connection.get()
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	nodes, err := cluster.API.Nodes().List(r.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	s.reply(w, pingReply{Status: "ok: the berth cluster of job " + cluster.Job, Resources: allocatable(nodes.Items)})
}

// allocatable returns the sum of the allocatable resources of all nodes that are ready and
// schedulable.
func allocatable(nodes []corev1.Node) *resources {
	total := corev1.ResourceList{}
	for _, node := range nodes {
		ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || node.Spec.Unschedulable || cluster.IsVirtual(node.Labels) {
			continue
		}
		for name, quantity := range node.Status.Allocatable {
			amount := total[name]
			amount.Add(quantity)
			total[name] = amount
		}
	}
	text := func(quantity resource.Quantity) string { return quantity.String() }
	r := &resources{CPU: text(total[corev1.ResourceCPU]), Memory: text(total[corev1.ResourceMemory]), Pods: text(total[corev1.ResourcePods])}
	for _, name := range slices.Sorted(maps.Keys(total)) {
		if strings.Contains(string(name), "/") {
			r.Accelerators = append(r.Accelerators, accelerator{ResourceType: string(name), Available: text(total[name])})
		}
	}
	return r
}
