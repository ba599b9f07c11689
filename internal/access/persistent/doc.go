// Package persistent finds clusters that outlive their command (berth up). Other
// processes of the same user on the same host use it to find such a cluster, to
// wait for it, to bring it images and to end it. What runs on the cluster does
// not belong here.
package persistent
