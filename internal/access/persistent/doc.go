// Package persistent is how a cluster that stays until it is told to end (berth
// up) is found by other processes of its user on its host, waited for, and told
// to end. What is done with it does not belong here.
package persistent
