// Package siteconf defines what the parts of the site network share: the administrator's
// configuration, the records in etcd, and the protocol of berthd's socket. It changes nothing
// on the machine; internal/site/berthd and internal/site/vxlan do.
package siteconf
