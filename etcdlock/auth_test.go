package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// guarded returns a server with logins that are good for three seconds, a client of its root,
// and the URL of a user who may read and write under /locks/.
func guarded(t *testing.T) (s *testserver.Server, root *clientv3.Client, url string) {
	t.Helper()
	s = testserver.Etcd(t, testserver.Args("--auth-token-ttl", "3", "--bcrypt-cost", "4"))
	c := dial(t, s.Addr())
	ctx := t.Context()
	_, err := c.RoleAdd(ctx, "root")
	for _, step := range []func() error{
		func() error { _, err := c.UserAdd(ctx, "root", "r00t"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.RoleAdd(ctx, "locks"); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, "locks", "/locks/", clientv3.GetPrefixRangeEnd("/locks/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAdd(ctx, "app", "s3cret"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "app", "locks"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	root = dial(t, s.Addr(), func(c *clientv3.Config) { c.Username, c.Password = "root", "r00t" })
	return s, root, "etcd://app:s3cret@" + s.Addr() + "/locks?ttl=5s"
}

// A login that ends while a lock is held, or waited for, ends neither.
func TestLoginEnds(t *testing.T) {
	s, root, url := guarded(t)
	byClient := lockerOn(t, dial(t, s.Addr(), func(c *clientv3.Config) { c.Username, c.Password = "app", "s3cret" }),
		etcdlock.Config{Config: lock.Config{TTL: 5 * time.Second}, Prefix: "/locks/"})
	for name, l := range map[string]lock.Locker{"by URL": openURL(t, url), "by client": byClient} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := openURL(t, url)
			key := "e6 " + name
			h := must(t)(l.Acquire(t.Context(), key))
			next := wait(t, other, key)
			time.Sleep(10 * time.Second)
			if err := h.Err(); err != nil {
				t.Fatal(err)
			}
			release(t, h)
			h = next()
			if left := names(t, root, "/locks/{"+key+"}/"); len(left) != 1 {
				t.Errorf("at the server: %q, want the lock of the second alone", left)
			}
			time.Sleep(4 * time.Second)
			release(t, h)
			if left := names(t, root, "/locks/{"+key+"}/"); len(left) != 0 {
				t.Errorf("left at the server: %q", left)
			}
		})
	}
}

// A login that has ended since the first watch was made does not make the next ones polls.
func TestLoginEndsBeforeTheNextWatch(t *testing.T) {
	s, root, url := guarded(t)
	l, other := openURL(t, url), openURL(t, url)
	h, held := must(t)(l.Acquire(t.Context(), "waited")), must(t)(other.Acquire(t.Context(), "first"))
	next := wait(t, other, "waited") // its watch, and that over what it holds, are made with the first login
	until(t, func() bool { return waiters(t, l, "waited") == 1 })
	time.Sleep(6 * time.Second) // renewals have other logins
	second := must(t)(l.Acquire(t.Context(), "second"))
	another := wait(t, other, "second")
	guarded := must(t)(other.Acquire(t.Context(), "guarded"))
	time.Sleep(2 * time.Second) // by then all are in place
	before := requests(t, s, "Txn", "Range")
	time.Sleep(3 * time.Second)
	if n := requests(t, s, "Txn", "Range") - before; n > 2 {
		t.Errorf("two who wait, and two who hold, made %d requests in 3 s", n)
	}
	if _, err := root.Delete(t.Context(), "/locks/{guarded}/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	took(t, "the loss of what was deleted", 3*time.Second, func() { <-guarded.Lost() })
	for _, one := range []struct {
		holder lock.Handle
		next   func() lock.Handle
	}{{h, next}, {second, another}} {
		release(t, one.holder)
		took(t, "a hand-over", 3*time.Second, func() { release(t, one.next()) })
	}
	release(t, held)
}

// Who logs in for each renewal renews by the endpoint that answers, whichever is mute.
func TestLoginBesideMuteEndpoint(t *testing.T) {
	s, _, url := guarded(t)
	for i, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoints := []*conformance.Proxy{newProxy(t, s.Addr()), newProxy(t, s.Addr())}
			both := endpoints[0].Addr() + "," + endpoints[1].Addr()
			l := openURL(t, strings.NewReplacer(s.Addr(), both, "ttl=5s", "ttl=6s").Replace(url))
			h := must(t)(l.Acquire(t.Context(), name))
			endpoints[i].Stall()
			select {
			case <-h.Lost():
				t.Error(h.Err())
			case <-time.After(15 * time.Second): // by then the client has noticed, and asks the other alone
				release(t, h)
			}
		})
	}
}

// Outside what the user may write, the error says so at once, and nothing is left.
func TestPermission(t *testing.T) {
	s, root, url := guarded(t)
	_, err := lock.Open(t.Context(), strings.Replace(url, "/locks", "/elsewhere", 1))
	if err == nil || !strings.Contains(err.Error(), "permission denied") || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Open outside the prefix: %v, want that the permission is missing", err)
	}
	l := lockerOn(t, dial(t, s.Addr(), func(c *clientv3.Config) { c.Username, c.Password = "app", "s3cret" }), etcdlock.Config{})
	for _, opts := range [][]lock.Option{{lock.Wait(0)}, {lock.Wait(time.Minute)}} {
		took(t, "a refusal", 2*time.Second, func() {
			_, err := l.Acquire(t.Context(), "one", opts...)
			if err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("Acquire outside the prefix: %v, want that the permission is missing", err)
			}
		})
	}
	if _, err := l.Inspect(t.Context(), "one"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("Inspect outside the prefix: %v, want that the permission is missing", err)
	}
	_ = l.Close()
	if n := leases(t, root); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if left := names(t, root, "/"); len(left) != 0 {
		t.Errorf("left at the server: %q", left)
	}
}

// A password that is changed, or a role that is taken away, while a lock is held loses it by
// its TTL, and is never a good release.
func TestRightsTakenAway(t *testing.T) {
	for name, take := range map[string]func(*testing.T, *clientv3.Client) error{
		"password": func(t *testing.T, root *clientv3.Client) error {
			_, err := root.UserChangePassword(t.Context(), "app", "other")
			return err
		},
		"role": func(t *testing.T, root *clientv3.Client) error {
			_, err := root.UserRevokeRole(t.Context(), "app", "locks")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, root, url := guarded(t)
			l, released := openURL(t, url), openURL(t, url)
			h, other := must(t)(l.Acquire(t.Context(), "e6")), must(t)(released.Acquire(t.Context(), "other"))
			if err := take(t, root); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := other.Release(ctx); err == nil { // when its lease has ended, it would be
				t.Error("Release without the right to it: nil")
			}
			took(t, "the loss", 6*time.Second, func() { <-h.Lost() })
			matches(t, "Err", h.Err(), lock.ErrLost)
			matches(t, "Release", h.Release(t.Context()), lock.ErrLost)
			_, err := l.TryAcquire(t.Context(), "e6")
			if err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("TryAcquire afterwards: %v, want why it is refused", err)
			}
			until(t, func() bool { return len(names(t, root, "/locks/")) == 0 })
		})
	}
}

// Credentials that are wrong or missing are told at once, and not shown.
func TestCredentials(t *testing.T) {
	s, _, _ := guarded(t)
	for url, want := range map[string]string{
		"etcd://app:wr0ng@" + s.Addr() + "/locks":     "correct user and password",
		"etcd://nobody:wr0ng@" + s.Addr() + "/locks":  "correct user and password",
		"etcd://" + s.Addr() + "/locks":               "give user and password",
		"etcd://app@" + s.Addr() + "/locks":           "without a password",
		"etcd://:wr0ng@" + s.Addr() + "/locks":        "without a user",
		"etcd://root:wr0ng@" + s.Addr() + "/?ttl=abc": "ttl",
	} {
		took(t, "Open", 2*time.Second, func() {
			l, err := lock.Open(t.Context(), url)
			if err == nil {
				_ = l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wr0ng") || errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Open(%q): %v, want %q and no password", url, err, want)
			}
		})
	}
	open := testserver.Etcd(t)
	release(t, must(t)(openURL(t, "etcd://app:needless@"+open.Addr()).TryAcquire(t.Context(), "one")))
}

// doorkeeper lets nobody in any more, from some time on.
type doorkeeper struct {
	pb.UnimplementedAuthServer
	says  codes.Code
	shut  atomic.Bool
	asked atomic.Int64 // since then
}

func (d *doorkeeper) Authenticate(context.Context, *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if d.shut.Load() {
		d.asked.Add(1)
		return nil, status.Error(d.says, "nobody gets in")
	}
	return &pb.AuthenticateResponse{Header: &pb.ResponseHeader{}, Token: "token"}, nil
}

// A login that fails at once, as where there is no connection, or that somebody on the way cancels,
// is tried again after a pause.
func TestLoginsArePaced(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			s, d := &cancelling{sent: make(map[string]int)}, &doorkeeper{says: code}
			addr := serve(t, func(g *grpc.Server) {
				pb.RegisterKVServer(g, s)
				pb.RegisterLeaseServer(g, s)
				pb.RegisterAuthServer(g, d)
			})
			l := openURL(t, "etcd://user:password@"+addr+"?ttl=6s")
			_, _ = l.TryAcquire(t.Context(), "one") // comes to nothing; what is renewed is there
			d.shut.Store(true)
			until(t, func() bool { return d.asked.Load() > 0 })
			time.Sleep(2 * time.Second)
			if n := d.asked.Load(); n > 200 { // three renewals at once, and a watch
				t.Errorf("%d logins in 2 s", n)
			}
		})
	}
}
