// Package cases defines what is measured. Each case has a program to run, and a function
// that reads figures from its output. How the program runs, in a pod for example, belongs to
// package system.
//
// Read cases.go first, which lists the cases. cpu.go, memory.go, storage.go, network.go,
// startup.go, images.go, nodes.go and mpi.go each have the cases of one subject.
// program.go has the case for any other program, and requirements.go the case that checks
// the requirements of the KSI paper.
package cases
