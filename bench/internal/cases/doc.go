// Package cases defines what is measured: each case is a program to run, and a function
// that reads its output. Package system decides how programs run.
//
// Read cases.go first, which lists the cases. cpu.go, memory.go, storage.go, network.go,
// startup.go, images.go, nodes.go and mpi.go each have the cases of one subject, and
// program.go has the case for any other program. requirements.go checks the requirements
// of the KSI paper.
package cases
