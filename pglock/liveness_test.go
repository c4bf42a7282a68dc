package pglock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	osexec "os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

// slack is what a busy machine may take beyond what is promised.
const slack = 2 * time.Second

// The server keeps the lock of a holder that it hears nothing of for as long as that relies
// on it, and no longer than the TTL: on the shared session, and on one that has waited.
func TestServerFreesAfterTTL(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	other := mustOpen(t, s, "")
	for _, waited := range []bool{false, true} {
		a, p := proxied(t, s, "ttl=3s")
		var h lock.Handle
		if waited {
			held := tryAcquire(t, other, "k")
			time.AfterFunc(100*time.Millisecond, func() { _ = held.Release(context.Background()) })
			h = acquire(t, a, "k", 10*time.Second)
		} else {
			h = tryAcquire(t, a, "k")
		}
		time.Sleep(time.Second)
		p.Stall()
		until := time.Now().Add(h.Valid())
		cut := time.Now()
		for holderOf(t, admin, "k") != 0 {
			if time.Since(cut) > 3*time.Second+slack {
				t.Fatalf("the server keeps the lock for more than the TTL of 3s, waited for: %v", waited)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if early := time.Until(until); early > 0 {
			t.Errorf("the server let go %v before the holder knew", early)
		}
		<-h.Lost()
		t.Logf("freed %v after the cut, %v after Valid was over", time.Since(cut), time.Since(until))
		p.Heal()
	}
}

// What the server says, or the network, is heard at once, and not with the next renewal.
func TestLossIsHeardAtOnce(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	for name, end := range map[string]func(p *conformance.Proxy){
		"pg_terminate_backend": func(*conformance.Proxy) {
			exec(t, admin, "SELECT pg_terminate_backend($1)", holderOf(t, admin, "k"))
		},
		"a reset": func(p *conformance.Proxy) { p.Cut() },
	} {
		l, p := proxied(t, s, "ttl=10m")
		h := tryAcquire(t, l, "k")
		end(p)
		select {
		case <-h.Lost():
		case <-time.After(5 * time.Second): // a renewal is minutes away
			t.Errorf("%s: Lost is open", name)
		}
		if err := h.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: Release: %v, want ErrLost", name, err)
		}
		release(t, acquire(t, l, "k", 10*time.Second)) // the same Locker goes on
	}
	l := mustOpen(t, s, "ttl=10m")
	h := tryAcquire(t, l, "k")
	s.Stop()
	select {
	case <-h.Lost():
	case <-time.After(5 * time.Second):
		t.Error("the server's end: Lost is open")
	}
	s.Start()
	release(t, acquire(t, l, "k", 10*time.Second))
}

// The backend of a session that was given up is terminated from another: it would keep
// everybody out for as long as the server waits for its client.
func TestLeftBackendIsTerminated(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	l, p := proxied(t, s, "ttl=10m")
	b := mustOpen(t, s, "")
	h := tryAcquire(t, l, "warm-up")
	p.StallReplies()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := l.TryAcquire(ctx, "k")
	matches(t, "an answer that does not come", err, context.DeadlineExceeded)
	until(t, func() bool { return holderOf(t, admin, "k") != 0 })
	began := time.Now()
	p.Cut() // of which the server hears, and so this is the end of its backend, too
	p.Heal()
	release(t, acquire(t, b, "k", 20*time.Second))
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the lock was free after %v", took)
	}
	<-h.Lost()

	// Now the server hears nothing: the connection dies on this side alone.
	h = tryAcquire(t, l, "k")
	pid := holderOf(t, admin, "k")
	p.Drop()
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = h.Release(ctx)
	if n := value[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid); n != 1 {
		t.Error("the server has noticed")
	}
	p.Heal() // which resets what was dropped
	release(t, acquire(t, b, "k", 20*time.Second))
}

// childEnv makes TestChild a process of its own, which does what it says.
const childEnv = "HOLDFAST_PGLOCK_CHILD"

// TestChild holds a lock, or waits for one, and tells so.
func TestChild(t *testing.T) {
	u := os.Getenv(childEnv)
	if u == "" {
		t.Skip("it is what other tests run as a process of its own")
	}
	l, err := lock.Open(context.Background(), u)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("asking")
	h, err := l.Acquire(context.Background(), "p10")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	for h.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("lost, and told:", isLost(h))
	select {}
}

func isLost(h lock.Handle) bool {
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

// child is a process with a Locker.
type child struct {
	cmd   *osexec.Cmd
	lines chan string
}

func startChild(t *testing.T, u string) *child {
	t.Helper()
	cmd := osexec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), childEnv+"="+u)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, make(chan string, 10)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-read; _ = cmd.Wait() })
	return c
}

func (c *child) says(t *testing.T, want string) {
	t.Helper()
	for {
		select {
		case line := <-c.lines:
			if strings.HasPrefix(line, want) {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the process has not said %q", want)
		}
	}
}

// P10: the lock of a holder that is killed is free at once, and its queue goes on.
func TestKilledHolderAndWaiter(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	u := urlOf(s, "ttl=5s")
	l := mustOpen(t, s, "ttl=5s")
	holder := startChild(t, u)
	holder.says(t, "held")
	began := time.Now()
	_ = holder.cmd.Process.Kill()
	release(t, acquire(t, l, "p10", 20*time.Second))
	if took := time.Since(began); took > slack {
		t.Errorf("the lock of a holder that was killed was free after %v", took)
	}

	h := tryAcquire(t, l, "p10")
	var waiters []*child
	for range 3 {
		c := startChild(t, u)
		c.says(t, "asking")
		waiters = append(waiters, c)
	}
	until(t, func() bool { return value[int](t, admin, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 3 })
	_ = waiters[0].cmd.Process.Kill()
	release(t, h)
	first := make(chan int, 3)
	for i, c := range waiters[1:] {
		go func() {
			for line := range c.lines {
				if line == "held" {
					first <- i
				}
			}
		}()
	}
	got := <-first
	began = time.Now()
	_ = waiters[1+got].cmd.Process.Kill()
	<-first
	if took := time.Since(began); took > slack {
		t.Errorf("the next waiter got the lock after %v", took)
	}
	for _, c := range waiters {
		_ = c.cmd.Process.Kill()
		close(c.lines)
	}
	until(t, func() bool { return lockRows(t, admin) == 0 })
}

// P10: a holder whose machine vanishes keeps others out for its TTL.
func TestVanishedHolder(t *testing.T) {
	s := testserver.Postgres(t)
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	holder := startChild(t, "postgres://"+testserver.PostgresUser+"@"+p.Addr()+"/postgres?sslmode=disable&ttl=3s")
	holder.says(t, "held")
	p.Stall()
	_ = holder.cmd.Process.Kill()
	began := time.Now()
	release(t, acquire(t, mustOpen(t, s, "ttl=3s"), "p10", 20*time.Second))
	if took := time.Since(began); took > 3*time.Second+slack {
		t.Errorf("the lock was free after %v, with a TTL of 3s", took)
	}
}

// P10: a holder that was stopped for long knows on waking that it holds nothing.
func TestStoppedHolder(t *testing.T) {
	s := testserver.Postgres(t)
	holder := startChild(t, urlOf(s, "ttl=3s"))
	holder.says(t, "held")
	if err := holder.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	release(t, acquire(t, mustOpen(t, s, "ttl=3s"), "p10", 20*time.Second))
	if took := time.Since(began); took > 3*time.Second+slack {
		t.Errorf("the lock was free after %v, with a TTL of 3s", took)
	}
	if err := holder.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	holder.says(t, "lost, and told: true")
}

// A session that has nothing to wait for is closed after a TTL, and opened when one is
// needed.
func TestIdleWaitSessionsAreClosed(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	a, b := mustOpen(t, s, "ttl=2s"), mustOpen(t, s, "ttl=2s&wait_conns=3")
	wait := func() {
		var done atomic.Int32
		for i := range 5 {
			key := fmt.Sprint("k-", i)
			h := tryAcquire(t, a, key)
			go func() {
				got, err := b.Acquire(context.Background(), key)
				if err != nil {
					t.Error(err)
				} else if err := got.Release(context.Background()); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}()
			time.AfterFunc(300*time.Millisecond, func() { _ = h.Release(context.Background()) })
		}
		until(t, func() bool { return done.Load() == 5 })
	}
	wait()
	if n := sessions(t, admin); n < 3 || n > 2+3 {
		t.Errorf("%d connections after five waits with wait_conns=3", n)
	}
	until(t, func() bool { return sessions(t, admin) == 2 })
	wait()
}

// The network may be silent for a TTL, of any length that is taken, before the server gives a
// client up; and not for much longer.
func TestKeepalivesLastForTheTTL(t *testing.T) {
	s := testserver.Postgres(t)
	c := dial(t, s)
	for _, ttl := range []time.Duration{
		time.Second, 2500 * time.Millisecond, 15 * time.Second, 10 * time.Hour, 3 * 32767 * time.Second,
		3*32767*time.Second + time.Second, 10 * 24 * time.Hour, math.MaxInt32 * time.Millisecond,
	} {
		exec(t, c, pglock.Settings(150000, ttl, time.Second))
		seconds := func(name string) int { return value[int](t, c, "SELECT current_setting('"+name+"')::int") }
		idle, interval, count := seconds("tcp_keepalives_idle"), seconds("tcp_keepalives_interval"), seconds("tcp_keepalives_count")
		silence := time.Duration(idle+interval*count) * time.Second
		if silence < ttl || silence > 2*ttl+3*time.Second {
			t.Errorf("ttl %v: given up after %v (%d s, then %d times %d s)", ttl, silence, idle, count, interval)
		}
	}
}

// In whatever order a waiter and Abandon find that an attempt is over, its session is given
// back once; or not at all, if the waiter keeps it.
func TestWaitSessionsAreGivenBackOnce(t *testing.T) {
	for _, test := range []struct {
		steps []string
		want  int
	}{
		{[]string{"over", "over"}, 1},
		{[]string{"keep", "over"}, 0},
		{[]string{"keep", "part", "over"}, 1},
		{[]string{"keep", "over", "part", "over"}, 1},
		{[]string{"over", "keep", "over"}, 1},
		{[]string{"over", "keep", "part"}, 1},
	} {
		if got := pglock.Slots(test.steps...); got != test.want {
			t.Errorf("%v: given back %d times, want %d", test.steps, got, test.want)
		}
	}
}
