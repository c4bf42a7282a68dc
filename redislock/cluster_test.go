package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/redislock"
)

// cluster starts two masters, each with half of the slots.
func cluster(t *testing.T) (addrs [2]string) {
	t.Helper()
	addrs, _ = clusterOf(t)
	return addrs
}

func clusterOf(t *testing.T) (addrs [2]string, servers [2]*testserver.Server) {
	t.Helper()
	var nodes [2]*redis.Client
	for i, s := range testserver.RedisNodes(t, len(nodes), testserver.Args("--cluster-node-timeout", "60000")) {
		addrs[i], nodes[i], servers[i] = s.Addr(), dial(t, s.Addr()), s
	}
	do(t, nodes[0], "cluster", "addslotsrange", 0, 8191)
	do(t, nodes[1], "cluster", "addslotsrange", 8192, 16383)
	host, port, _ := strings.Cut(addrs[1], ":")
	do(t, nodes[0], "cluster", "meet", host, port)
	for _, n := range nodes {
		eventually(t, "the cluster is ready", func() bool {
			info, err := n.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:2")
		})
	}
	return addrs, servers
}

// Texts that would lead a hash tag astray.
var strangeKeys = []string{
	"{a}:{b}", "x{y", "}x", "{}x", "a{}b", "user:{42}:lock", "{{z}}", "{", "}", "{}", "}{", "%7B", "%", "a", " ",
	"\x00", "\xff{", "\n", "{\x80}", "日本語", strings.Repeat("{", 1024), strings.Repeat("}", 1024),
}

// A cluster refuses a script whose keys are not all in one slot.
func TestCluster(t *testing.T) {
	addrs := cluster(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs[:1], ContextTimeoutEnabled: true})
	t.Cleanup(func() { c.Close() })
	d := driveOn(t, c)

	var grants []driver.Grant
	var leases []driver.Lease
	for _, key := range strangeKeys {
		r := ask(key)
		g := acquire(t, d, r)
		grants, leases = append(grants, g), append(leases, g.Lease())
		if info, err := d.Inspect(t.Context(), key); err != nil || len(info.Holders) != 1 || info.Holders[0].Token != token(g) {
			t.Errorf("Inspect(%q): %+v, %v", key, info, err)
		}
		if err := d.Abandon(t.Context(), ask(key)); err != nil {
			t.Errorf("Abandon(%q): %v", key, err)
		}
	}
	for range 2 {
		for i, err := range d.Renew(t.Context(), leases) {
			if err != nil {
				t.Errorf("Renew(%q): %v", strangeKeys[i], err)
			}
		}
		err := c.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() })
		if err != nil {
			t.Fatal(err)
		}
	}

	// Of each lock: itself, its counter, a tombstone; all in one slot.
	slots, keys := make(map[string]map[int64]bool), 0
	for _, addr := range addrs {
		n := dial(t, addr)
		for _, name := range do(t, n, "keys", "*").([]any) {
			text := name.(string)
			tag := text[:strings.Index(text, "}")]
			if slots[tag] == nil {
				slots[tag] = make(map[int64]bool)
			}
			slots[tag][do(t, n, "cluster", "keyslot", text).(int64)] = true
			keys++
		}
	}
	if len(slots) != len(strangeKeys) || keys != 3*len(strangeKeys) {
		t.Errorf("%d keys in %d locks at the servers, want 3 in each of %d", keys, len(slots), len(strangeKeys))
	}
	for tag, in := range slots {
		if len(in) != 1 {
			t.Errorf("the keys of %q are in %d slots", tag, len(in))
		}
	}
	for _, g := range grants {
		release(t, g)
	}
}

// R2: a client that knows of no cluster, at one of its nodes, is told once, and tries
// no more.
func TestOneNodeOfACluster(t *testing.T) {
	addrs := cluster(t)
	c := dial(t, addrs[0], func(o *redis.Options) { o.MaxRetries = 3 })
	byURL, err := lock.Open(t.Context(), "redis://"+addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { byURL.Close() })
	do(t, c, "config", "resetstat")
	for _, l := range []lock.Locker{byURL, lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})} {
		began := time.Now()
		_, tryErr := l.TryAcquire(t.Context(), "foo") // slot 12182
		_, err := l.Acquire(t.Context(), "foo", lock.Wait(time.Minute))
		for _, err := range []error{tryErr, err} {
			if err == nil || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "redis.ClusterClient") {
				t.Errorf("an acquisition: %v, want an error that names the remedy", err)
			}
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("Acquire came back after %v, want at once", d)
		}
	}
	info, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	// It counts what it has refused to carry out as rejected.
	if _, rest, _ := strings.Cut(info, "cmdstat_evalsha:"); !strings.Contains(strings.SplitN(rest, "\n", 2)[0], "rejected_calls=4,") {
		t.Errorf("the node was asked not once for each acquisition:\n%s", info)
	}

	// What the node has can be locked, and then must be renewed as well.
	d := driveOn(t, c)
	leases := []driver.Lease{
		acquire(t, d, ask("bar")).Lease(), // slot 5061
		acquire(t, d, ask("b")).Lease(),   // slot 3300
	}
	for range 2 {
		for _, err := range d.Renew(t.Context(), leases) {
			if err != nil {
				t.Errorf("Renew of keys in two slots: %v", err)
			}
		}
	}
}

// A node that hangs costs its own locks, and not those of the others.
func TestHungNodeOfACluster(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	addrs, servers := clusterOf(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs[:1], ContextTimeoutEnabled: true})
	t.Cleanup(func() { c.Close() })
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})
	admin := dial(t, addrs[0])
	var well, hung []string
	for i := 0; len(well) < 16 || len(hung) < 16; i++ {
		key := fmt.Sprint("k", i)
		if do(t, admin, "cluster", "keyslot", "holdfast:{"+key+"}").(int64) < 8192 {
			well = append(well, key)
		} else {
			hung = append(hung, key)
		}
	}
	hold := func(key string) lock.Handle {
		t.Helper()
		h, err := l.TryAcquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	var kept, gone []lock.Handle
	for i := range 8 {
		kept, gone = append(kept, hold(well[i])), append(gone, hold(hung[i]))
	}
	servers[1].Pause()
	defer servers[1].Resume()
	var asking sync.WaitGroup
	for _, key := range hung[8:16] {
		asking.Go(func() {
			if _, err := l.Acquire(t.Context(), key, lock.Wait(2*ttl)); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Acquire of a key of the node that hangs: %v, want ErrUnavailable", err)
			}
		})
	}
	longest := time.Duration(0)
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(time.Millisecond) {
		began := time.Now()
		h := hold(well[8])
		longest = max(longest, time.Since(began))
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	if longest > ttl/6 { // how long a request to the other node is waited for
		t.Errorf("a key of the other node waited for %v", longest)
	}
	for _, h := range kept {
		if err := h.Err(); err != nil {
			t.Errorf("a lock at the node that is well: %v", err)
		}
	}
	for _, h := range gone {
		if h.Err() == nil {
			t.Error("a lock at the node that hangs is held for two TTLs")
		}
	}
	asking.Wait()
}

// What the package comment says of a user's rights at a cluster is enough.
func TestAccessControlOfACluster(t *testing.T) {
	t.Parallel()
	addrs := cluster(t)
	for _, addr := range addrs {
		do(t, dial(t, addr), append(documentedRights(), "+cluster|slots")...)
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs[:1], ContextTimeoutEnabled: true, Username: "app", Password: "secret"})
	t.Cleanup(func() { c.Close() })
	a, b := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}}), lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})
	for _, key := range []string{"foo", "bar"} { // at one node each
		h, err := a.TryAcquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			h, err := b.Acquire(t.Context(), key, lock.Wait(20*time.Second))
			if err == nil {
				err = h.Release(t.Context())
			}
			got <- err
		}()
		eventually(t, "the other waits", func() bool {
			info, err := a.Inspect(t.Context(), key)
			return err == nil && info.Waiters == 1
		})
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		if err := <-got; err != nil {
			t.Errorf("the other: %v", err)
		}
	}
}
