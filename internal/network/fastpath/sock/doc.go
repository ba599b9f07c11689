// Package sock makes, inspects and changes single sockets by number, as package fastpath
// needs them. It knows neither pods nor calls of programs.
package sock
