// Package system has the compared ways of running a program; each is a Driver. Package
// cases selects the programs and interprets their output.
//
// Read system.go first, which has Task and Driver, then catalogue.go, which lists the
// drivers, and place.go, which starts programs on hosts. bare.go, namespace.go, podman.go,
// apptainer.go (with sif.go), berth.go, kubeconfig.go, job.go and attachment.go each have a
// driver. manifest.go writes tasks as pods, script.go as a script, and sequence.go runs a
// sequence of the bench. images.go delivers images to the hosts.
package system
