package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// EtcdCluster starts etcd servers of the test's own that replicate, and returns when each of
// them serves. Their least time to live of a lease is two seconds. route, if not nil, is asked
// for each pair of them which address the first is to dial for the second: a proxy's, say.
func EtcdCluster(t testing.TB, nodes int, route func(from, to int, addr string) string, opts ...Option) []*Server {
	t.Helper()
	o := resolve(opts)
	return launchAll(t, fmt.Sprintf("a cluster of %d", nodes), func() ([]*Server, error) { return etcdCluster(t, nodes, route, o) })
}

func etcdCluster(t testing.TB, nodes int, route func(from, to int, addr string) string, o options) ([]*Server, error) {
	t.Helper()
	listen, advertise, members := make([]string, nodes), make([]string, nodes), make([]string, nodes)
	for i := range nodes {
		peer := claimPort(t)
		t.Cleanup(peer.release)
		listen[i] = loopback(peer.port)
		advertise[i] = "http://" + listen[i]
		if route != nil {
			advertise[i] = "http://" + etcdPeer(i) + ":2380"
		}
		members[i] = etcdName(i) + "=" + advertise[i]
	}
	servers := make([]*Server, nodes)
	errs := make([]error, nodes)
	var started sync.WaitGroup
	for i := range nodes {
		m := etcdMember{
			name: etcdName(i), members: strings.Join(members, ","), advertise: advertise[i], listen: "http://" + listen[i],
			heartbeat: 100,
		}
		if route != nil {
			addrs := make(map[string]string)
			for j := range nodes {
				addrs[etcdPeer(j)+":2380"] = listen[j]
				if i != j {
					addrs[etcdPeer(j)+":2380"] = route(i, j, listen[j])
				}
			}
			m.env = []string{"http_proxy=" + forward(t, addrs), "no_proxy="}
		}
		s := newServer(t, etcdNode(t, o, m))
		s.claim = claimPort(t)
		s.addr = loopback(s.claim.port)
		servers[i] = s
		started.Go(func() { errs[i] = s.run() }) // none serves before most of them run
	}
	started.Wait()
	return servers, errors.Join(errs...)
}

func etcdName(i int) string { return "member-" + strconv.Itoa(i) }

// etcdPeer is a host that only what forward starts knows. All members know each of them by one
// address, so that who is asking shows only in which of these he asks by.
func etcdPeer(i int) string { return etcdName(i) + ".test" }

// forward starts an HTTP proxy that knows the addresses of some hosts, and returns its URL.
func forward(t testing.TB, addrs map[string]string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	transport := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addrs[addr])
		},
	}
	quiet := log.New(io.Discard, "", 0)
	s := &http.Server{ //nolint:gosec // its clients are the test's own
		ErrorLog: quiet,
		Handler: &httputil.ReverseProxy{
			Rewrite:       func(*httputil.ProxyRequest) {}, // the URL is whole
			FlushInterval: -1,                              // what replicates is one long answer
			Transport:     transport,
			ErrorLog:      quiet,
		},
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		serving.Wait()
		transport.CloseIdleConnections()
	})
	return (&url.URL{Scheme: "http", Host: l.Addr().String()}).String()
}
