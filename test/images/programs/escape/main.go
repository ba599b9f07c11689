// Command escape tries to leave the pod that it runs in, and prints for each thing that it
// looks for whether it was kept from it or reached it, and how:
//
//	escape [-own FILE] [-foreign FILE] [-handle HANDLE] [-denied ADDRESS] [-allowed ADDRESS]
//	escape handle FILE  prints FILE's handle, for -handle
//
// It changes nothing outside of the pod, also where an attempt succeeds.
package main

import (
	"flag"
	"fmt"
	"os"
)

// What processes of other pods and of the host have in their command lines.
const (
	podProcess  = "4711.1"
	hostProcess = "4711.2"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "handle" {
		text, err := handleOf(os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, "escape:", err)
			os.Exit(1)
		}
		fmt.Println(text)
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "outside-root" {
		if !readsOutsideRoot(os.Args[2]) {
			os.Exit(1)
		}
		return
	}
	own := flag.String("own", "", "a file of the user, outside of the pod's volumes")
	foreign := flag.String("foreign", "", "a file that only another user may read")
	handle := flag.String("handle", "", "the handle of -own")
	denied := flag.String("denied", "", "an address that --deny-egress names")
	allowed := flag.String("allowed", "", "an address beside it")
	flag.Parse()

	report("the user's file", file(*own, *handle))
	report("another user's file", file(*foreign, ""))
	report("another pod's volume", file("/var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/*/bait", ""))
	report("the cluster's keys", file("/run/berth/*/*.key", ""))
	report("another pod's process", process(podProcess))
	report("the host's process", process(hostProcess))
	report("namespaces of the host", parentNamespace())
	report("settings of the kernel", kernelSettings())
	report("release_agent", releaseAgent())
	report("devices of the host", devices())
	report("sockets of the node", sockets())
	report("the kubelet", request("https://"+os.Getenv("NODE")+":10250/pods", ""))
	secrets := "https://" + os.Getenv("KUBERNETES_SERVICE_HOST") + ":" + os.Getenv("KUBERNETES_SERVICE_PORT") + "/api/v1/secrets"
	report("Secrets, without a token", request(secrets, ""))
	report("Secrets, with the pod's token", request(secrets, token()))
	report("an address denied", dial(*denied))
	report("an address allowed", dial(*allowed))
}

// report prints what became of an attempt. how is empty where nothing was reached.
func report(what, how string) {
	if how == "" {
		fmt.Println("kept:", what)
		return
	}
	fmt.Printf("reached: %s: %s\n", what, how)
}
