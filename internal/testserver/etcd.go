package testserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const etcdEnv = "HOLDFAST_TEST_ETCD"

// Etcd starts an etcd server of the test's own, a cluster of one, or returns the one
// that HOLDFAST_TEST_ETCD (host:port, no TLS, no authentication) names, whose keys the
// test shares with whoever else uses it. Its least time to live of a lease is a second.
func Etcd(t testing.TB, opts ...Option) *Server {
	t.Helper()
	o := resolve(opts)
	if s := fromEnv(t, etcdEnv, o, etcdHealth("http")); s != nil {
		return s
	}
	const nobody = "http://127.0.0.1:1" // there are no peers who would ask for us there
	return launch(t, etcdNode(t, o, etcdMember{
		name: "alone", members: "alone=" + nobody, advertise: nobody, listen: "http://127.0.0.1:0",
		// On one machine all is near: it is its own leader at once.
		heartbeat: 20,
	}))
}

// etcdMember is what a server is told of its place among others.
type etcdMember struct {
	name, members     string
	advertise, listen string   // URLs for the others
	heartbeat         int      // in milliseconds; a tenth of the time after which there is an election
	env               []string // for its requests to them
}

// etcdNode returns the program of one server.
func etcdNode(t testing.TB, o options, m etcdMember) program {
	t.Helper()
	bin := builtTool(t, "etcd")
	dir := t.TempDir()
	scheme := "http"
	if o.tlsCert != "" {
		scheme = "https"
	}
	return program{
		name: "etcd",
		command: func(port int) *exec.Cmd {
			url := scheme + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			args := []string{
				"--name", m.name,
				"--data-dir", dir,
				"--listen-client-urls", url,
				"--advertise-client-urls", url,
				"--listen-peer-urls", m.listen,
				"--initial-advertise-peer-urls", m.advertise,
				"--initial-cluster", m.members,
				"--heartbeat-interval", strconv.Itoa(m.heartbeat),
				"--election-timeout", strconv.Itoa(10 * m.heartbeat),
				"--log-level", "warn",
			}
			if !o.durable {
				args = append(args, "--unsafe-no-fsync")
			}
			if o.tlsCert != "" {
				args = append(args, "--cert-file", o.tlsCert, "--key-file", o.tlsKey)
			}
			cmd := exec.Command(bin, append(args, o.args...)...)
			cmd.Env = append(os.Environ(), m.env...)
			return cmd
		},
		ready: etcdHealth(scheme),
	}
}

// etcdHealth returns a function that returns nil if the server answers that it is well: it
// asks itself for a key then, by way of its leader.
func etcdHealth(scheme string) func(context.Context, string) error {
	return func(ctx context.Context, addr string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/health", nil)
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its certificate is the test's own
		}}
		resp, err := client.Do(req)
		switch {
		case err == nil:
		case strings.Contains(err.Error(), "tls: certificate required"): // of its clients, which is an answer
			return nil
		default:
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET /health: %s", resp.Status)
		}
		return nil
	}
}

// builtTool returns the path of a program that setup.sh builds, as no package brings it.
func builtTool(t testing.TB, program string) string {
	t.Helper()
	dir, err := os.Getwd() // of a test: the folder of its package
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	for {
		path := filepath.Join(dir, ".bin", program)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatalf("testserver: %s is not built; run: make setup", program)
		}
		dir = parent
	}
}
