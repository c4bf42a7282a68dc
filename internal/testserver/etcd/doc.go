// Package etcd says which etcd the tests run. It is a module of its own, as the server
// must be built with the versions that its authors chose, and those who import Holdfast
// must not get what it needs. See setup.sh in the folder above.
package etcd
