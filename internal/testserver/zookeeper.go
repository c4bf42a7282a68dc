package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const zooKeeperEnv = "HOLDFAST_TEST_ZOOKEEPER"

// zooKeeperJars are where Debian puts them. The first speaks for slf4j, of which
// another may be on the class path; the second names what else it needs.
var zooKeeperJars = []string{
	"/usr/share/java/slf4j-log4j12.jar",
	"/usr/share/java/zookeeper.jar",
	"/usr/share/java/log4j-1.2.jar",
	"/usr/share/java/metrics-core.jar",
	"/usr/share/java/snappy-java.jar",
}

// zooKeeperConfig suits tests: sessions of 0.5 to 5 s, any number of connections from
// one address, and every four-letter word.
const zooKeeperConfig = `tickTime=250
initLimit=50
syncLimit=25
admin.enableServer=false
4lw.commands.whitelist=*
maxClientCnxns=0
preAllocSize=1024
`

const zooKeeperLog = `log4j.rootLogger=WARN, OUT
log4j.appender.OUT=org.apache.log4j.ConsoleAppender
log4j.appender.OUT.layout=org.apache.log4j.PatternLayout
log4j.appender.OUT.layout.ConversionPattern=%d %p %c: %m%n
`

// ZooKeeper starts a ZooKeeper server of the test's own, with ticks of 250 ms, or returns
// the one that HOLDFAST_TEST_ZOOKEEPER (host:port) names. Of its [Args], those that begin
// with -D are for the Java machine, and others lines of the configuration.
func ZooKeeper(t testing.TB, opts ...Option) *Server {
	t.Helper()
	o := resolve(opts)
	if s := fromEnv(t, zooKeeperEnv, o, askZooKeeper); s != nil {
		return s
	}
	return launch(t, zooKeeperNode(t, o, ""))
}

// ZooKeeperEnsemble starts servers of the test's own that replicate, and returns when
// each of them serves. route, if not nil, is asked for each pair of them which address
// the first is to dial for the port at which the second, if it leads, has its followers:
// a proxy's, say. Which of them leads, [ZooKeeperMode] tells.
func ZooKeeperEnsemble(t testing.TB, nodes int, route func(from, to int, addr string) string, opts ...Option) []*Server {
	t.Helper()
	o := resolve(opts)
	return launchAll(t, fmt.Sprintf("an ensemble of %d", nodes), func() ([]*Server, error) { return zooKeeperEnsemble(t, nodes, route, o) })
}

func zooKeeperEnsemble(t testing.TB, nodes int, route func(from, to int, addr string) string, o options) ([]*Server, error) {
	t.Helper()
	if route == nil {
		route = func(_, _ int, addr string) string { return addr }
	}
	quorum, election := make([]claim, nodes), make([]claim, nodes)
	for i := range nodes {
		quorum[i], election[i] = claimPort(t), claimPort(t)
		t.Cleanup(quorum[i].release)
		t.Cleanup(election[i].release)
	}
	servers := make([]*Server, nodes)
	errs := make([]error, nodes)
	var started sync.WaitGroup
	for i := range nodes {
		var members strings.Builder
		for j := range nodes {
			addr := loopback(quorum[j].port)
			if i != j {
				addr = route(i, j, addr)
			}
			fmt.Fprintf(&members, "server.%d=%s:%d\n", j+1, addr, election[j].port)
		}
		node := zooKeeperNode(t, o, fmt.Sprintf("%s# %d\n", members.String(), i+1))
		s := newServer(t, node)
		s.claim = claimPort(t)
		s.addr = loopback(s.claim.port)
		servers[i] = s
		started.Go(func() { errs[i] = s.run() }) // none serves before most of them run
	}
	started.Wait()
	return servers, errors.Join(errs...)
}

// zooKeeperNode returns the program of one server. members is what its configuration
// says of all, with a comment of the server's own number at its end; "": it is alone.
func zooKeeperNode(t testing.TB, o options, members string) program {
	t.Helper()
	bin := lookPath(t, "java")
	for _, jar := range zooKeeperJars {
		if _, err := os.Stat(jar); err != nil {
			t.Fatalf("testserver: ZooKeeper is not installed (%v); run: make setup", err)
		}
	}
	dir := t.TempDir()
	config, forJava := zooKeeperConfig, []string{
		"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dlog4j.configuration=file:" + filepath.Join(dir, "log4j.properties"),
		"-Dsun.net.inetaddr.ttl=1",
	}
	if !o.durable {
		config += "forceSync=no\n"
	}
	for _, arg := range o.args {
		if strings.HasPrefix(arg, "-D") {
			forJava = append(forJava, arg)
			continue
		}
		config += arg + "\n"
	}
	config += "dataDir=" + dir + "\n" + members
	write(t, filepath.Join(dir, "log4j.properties"), zooKeeperLog)
	if members != "" {
		write(t, filepath.Join(dir, "myid"), strings.TrimSpace(members[strings.LastIndex(members, "#")+1:]))
	}
	return program{
		name: "zookeeper",
		command: func(port int) *exec.Cmd {
			file := filepath.Join(dir, "zoo.cfg")
			write(t, file, fmt.Sprintf("%sclientPort=%d\nclientPortAddress=127.0.0.1\n", config, port))
			return exec.Command(bin, append(forJava, "-cp", strings.Join(zooKeeperJars, ":"),
				"org.apache.zookeeper.server.quorum.QuorumPeerMain", file)...)
		},
		ready: askZooKeeper,
	}
}

// askZooKeeper returns nil if the server serves clients.
func askZooKeeper(ctx context.Context, addr string) error {
	_, err := zooKeeperMode(ctx, addr)
	return err
}

// ZooKeeperMode returns what the server at addr is: standalone, leader or follower; ""
// if it does not serve.
func ZooKeeperMode(ctx context.Context, addr string) string {
	mode, _ := zooKeeperMode(ctx, addr)
	return mode
}

func zooKeeperMode(ctx context.Context, addr string) (string, error) {
	text, err := ZooKeeperWord(ctx, addr, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", fmt.Errorf("srvr: %q", text)
}

// ZooKeeperWord sends one of ZooKeeper's four-letter words, and returns the answer.
func ZooKeeperWord(ctx context.Context, addr, word string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}
