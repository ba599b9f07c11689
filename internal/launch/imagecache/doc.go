// Package imagecache is the folder where layers of images stay for later runs: its
// choice and its checks, and the commands of berth image on it. Pulls and imports
// of a run do not belong here.
package imagecache
