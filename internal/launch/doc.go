// Package launch is the composition root: it puts the mechanisms together in
// order, each step with its undo, watches over what it started, and takes all
// of it down again. It is the one package that imports many others; they never
// import each other.
//
// Run reads like the life of a cluster. What a step does inside belongs to the
// mechanism that it calls.
package launch
