// Package siteconf is what the parts of the site network have in common: the
// configuration that an administrator writes, what is kept in etcd, and the
// protocol between berthd and those who ask it for a network on its socket. It
// changes nothing on the machine; internal/site/berthd and internal/site/vxlan do.
package siteconf
