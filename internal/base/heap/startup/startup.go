// Package startup postpones garbage collection from the first instruction of a program
// that imports it. Variables of Kubernetes' packages fill 16 MB before main runs, and
// collecting finds little in them. Nothing else belongs here.
//
// It imports only the standard library, and Go initializes packages in the order of
// import paths where several could be next (language specification, "Program
// initialization"). So it comes before the packages of Kubernetes.
package startup

import "runtime/debug"

// percent lets the heap grow to five times what is in use before it is collected.
const percent = 400

// Before is the GOGC that the program was started with.
var Before = debug.SetGCPercent(percent)
