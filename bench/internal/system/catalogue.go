package system

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/bench/internal/plan"
)

// kind is a driver that a plan can name.
type kind struct {
	plan.Kind
	make func(name string, place Place, options map[string]string) Driver
}

// adds returns an estimate of a constant time that a driver adds to each trial.
func adds(seconds float64) func(map[string]string) float64 {
	return func(map[string]string) float64 { return seconds }
}

func anything(string) error { return nil }

// kinds returns all drivers.
func kinds() []kind {
	return slices.Concat(jobKinds(), clusterKinds(), containerKinds(), networkKinds())
}

// jobKinds returns the drivers that start programs in job steps.
func jobKinds() []kind {
	return []kind{
		{
			plan.Kind{Name: "bare", Summary: "bare metal: the same program in a plain job step", Hosts: 1, Seconds: adds(0.3)},
			func(_ string, p Place, _ map[string]string) Driver { return &bare{unpacked{p}} },
		},
		{
			plan.Kind{
				Name: "job", Summary: "a plain job for each trial, with options of the site such as a separate network or an image for steps; runs where jobs are submitted", Hosts: 1, Seconds: adds(2),
				Parameters: []plan.Parameter{
					{Name: "options", Help: "of sbatch: --network-pod=yes, say", Check: anything},
					{Name: "step", Help: "of srun, for steps in it: --container-image={image}, say; {image} is the directory of --step-image", Check: anything},
					{Name: "outside", Help: "of sbatch, for the job that the case steps compares with", Check: anything},
				},
			},
			func(_ string, p Place, o map[string]string) Driver { return newJob(p, o) },
		},
	}
}

// clusterKinds returns the drivers that start pods of Kubernetes.
func clusterKinds() []kind {
	return []kind{
		{
			plan.Kind{
				Name: "berth", Summary: "a pod in a cluster of berth, started for each trial", Hosts: 1, Seconds: adds(3), Together: true,
				Parameters: []plan.Parameter{
					{Name: "network", Default: "auto", Help: "auto (as users have it, with the fast path), overlay (--fast-path off) or host (hostNetwork)", Check: plan.OneOf("auto", "overlay", "host")},
					{Name: "options", Help: "more options of berth run, with blanks between them; {folder} is one that all hosts see", Check: anything},
					{Name: "program", Help: "its name or path (otherwise the one beside this program)", Check: anything},
					{Name: "images", Default: "oci", Help: "form of the images that are delivered: oci or estargz", Check: plan.OneOf("oci", "estargz")},
				},
			},
			func(name string, p Place, o map[string]string) Driver {
				network := o["network"]
				return &berth{place: p, name: name, program: cmp.Or(o["program"], p.Berth), options: strings.Fields(o["options"]), hostNetwork: network == "host", fast: network == "auto", form: o["images"]}
			},
		},
		{
			plan.Kind{
				Name: "kubeconfig", Summary: "a pod in an existing cluster of any kind", Hosts: 1, Seconds: adds(3),
				Parameters: []plan.Parameter{
					{Name: "file", Help: "the kubeconfig (otherwise KUBECONFIG)", Check: anything},
					{Name: "namespace", Default: "default", Help: "for the pods", Check: anything},
					{Name: "image", Help: "the image's name in a registry that the cluster reaches", Check: anything},
					{Name: "network", Default: "pod", Help: "pod or host (hostNetwork)", Check: plan.OneOf("pod", "host")},
				},
			},
			func(_ string, p Place, o map[string]string) Driver { return newKubeconfig(p, o) },
		},
	}
}

// containerKinds returns the drivers that start containers without Kubernetes.
func containerKinds() []kind {
	return []kind{
		{
			plan.Kind{
				Name: "podman", Summary: "a container of rootless Podman", Hosts: 1, Seconds: adds(1.5),
				Parameters: []plan.Parameter{{
					Name: "network", Default: "slirp4netns", Help: "slirp4netns, pasta, bypass4netns (with slirp4netns) or host",
					Check: plan.OneOf("slirp4netns", "pasta", "bypass4netns", "host"),
				}},
			},
			func(_ string, p Place, o map[string]string) Driver { return &podman{p, o["network"]} },
		},
		{
			plan.Kind{
				Name: "apptainer", Summary: "a container of Apptainer, from a SIF file that it makes from the image, without root", Hosts: 1, Seconds: adds(0.5), Packing: 140,
				Parameters: []plan.Parameter{{Name: "program", Default: "apptainer", Help: "its name or path", Check: anything}},
			},
			func(_ string, p Place, o map[string]string) Driver {
				return &apptainer{place: p, program: o["program"]}
			},
		},
	}
}

// networkKinds returns the drivers that start programs in network namespaces.
func networkKinds() []kind {
	return []kind{
		{
			plan.Kind{
				Name: "rootlesskit", Summary: "a network namespace that rootlesskit connects", Hosts: 1, Seconds: adds(1),
				Parameters: []plan.Parameter{{Name: "network", Default: "slirp4netns", Help: "slirp4netns, pasta or host", Check: plan.OneOf("slirp4netns", "pasta", "host")}},
			},
			func(_ string, p Place, o map[string]string) Driver { return rootlesskit(p, o["network"]) },
		},
		{
			plan.Kind{Name: "pasta", Summary: "a network namespace that pasta connects", Hosts: 1, Seconds: adds(0.5)},
			func(_ string, p Place, _ map[string]string) Driver { return pasta(p) },
		},
		{
			plan.Kind{
				Name: "flannel", Summary: "a pod of flannel's network, without Kubernetes; root has set it up (test/bench/flannel/host)", Hosts: 1, Seconds: adds(0.6),
				Parameters: []plan.Parameter{{Name: "backend", Default: "vxlan", Help: "vxlan or host-gw", Check: plan.OneOf("vxlan", "host-gw")}},
			},
			func(_ string, p Place, o map[string]string) Driver {
				return &attachment{unpacked: unpacked{p}, network: "flannel", way: o["backend"]}
			},
		},
		{
			plan.Kind{
				Name: "calico", Summary: "a pod of Calico's network, without Kubernetes; root has set it up (test/bench/calico/host)", Hosts: 1, Seconds: adds(0.6),
				Parameters: []plan.Parameter{{Name: "mode", Default: "vxlan", Help: "vxlan or cross-subnet", Check: plan.OneOf("vxlan", "cross-subnet")}},
			},
			func(_ string, p Place, o map[string]string) Driver {
				return &attachment{unpacked: unpacked{p}, network: "calico", way: o["mode"]}
			},
		},
	}
}

// Kinds returns the drivers, for plans.
func Kinds() map[string]plan.Kind {
	all := map[string]plan.Kind{}
	for _, k := range kinds() {
		all[k.Name] = k.Kind
	}
	return all
}

// New returns the driver of a plan's system.
func New(s plan.System, place Place) (Driver, error) {
	for _, k := range kinds() {
		if k.Name == s.Driver {
			return k.make(s.Name, place, s.Options), nil
		}
	}
	return nil, fmt.Errorf("there is no driver %q", s.Driver)
}
