// Package pulls reads the user's settings for pulling images: passwords of
// registries, certificate authorities and proxies. The programs that pull do not
// see them, because they have another environment. What is pulled, and the cache
// of images, do not belong here.
package pulls
