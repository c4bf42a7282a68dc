// Package testserver runs real servers as local processes, for tests: they can be
// paused, killed and started again on the same port and data, and nothing of them
// is left when the test binary ends, even if it is killed.
//
// An environment variable (HOLDFAST_TEST_REDIS, HOLDFAST_TEST_POSTGRES,
// HOLDFAST_TEST_ETCD, HOLDFAST_TEST_ZOOKEEPER) names a server that runs already, of
// another version perhaps; then there are no faults of processes to be had, and the
// tests that need them are skipped, visibly.
//
// It works on Unix only, as the servers do.
package testserver
