package zklock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

const holderEnv = "ZKLOCK_TEST_HOLDER" // of a process that holds a lock until it is killed

// holdUntilKilled is the process. It says when it holds the lock, and when it has lost it.
func holdUntilKilled(addr string) {
	l, err := zklock.New([]string{addr}, zklock.Config{Config: lock.Config{TTL: ttl}, Tick: tick})
	if err != nil {
		panic(err)
	}
	h, err := l.Acquire(context.Background(), "z6")
	if err != nil {
		panic(err)
	}
	fmt.Println("held")
	<-h.Lost()
	fmt.Println("lost")
	select {}
}

// holder is another process, as the test sees it.
type holder struct {
	*testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

func startHolder(t *testing.T, addr string) *holder {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), holderEnv+"="+addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &holder{t, cmd, bufio.NewReader(out)}
	t.Cleanup(h.kill)
	return h
}

func (h *holder) says(what string) {
	h.Helper()
	if line, err := h.out.ReadString('\n'); err != nil || line != what+"\n" {
		h.Fatalf("the other process says %q, %v; want %q", line, err, what)
	}
}

func (h *holder) signal(sig os.Signal) {
	h.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil {
		h.Fatal(err)
	}
}

func (h *holder) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// The lock of a process that is killed is free when its session has timed out.
func TestHolderIsKilled(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	l := lockerOn(t, zklock.Config{}, server.Addr())
	holder := startHolder(t, server.Addr())
	holder.says("held")
	if _, err := l.TryAcquire(t.Context(), "z6"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("while it lives: %v, want ErrHeld", err)
	}
	holder.kill()
	killed := time.Now()
	h := acquire(t, l, "z6")
	took := time.Since(killed)
	t.Logf("free %v after the end of its holder", took)
	if took < ttl/2 || took > ttl+2*time.Second {
		t.Errorf("free after %v, want about the TTL of %v", took, ttl)
	}
	release(t, h)
}

// A waiter that is killed does not hold up those behind it for longer.
func TestWaiterIsKilled(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	a, b := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	direct := dial(t, server.Addr())
	h := acquire(t, a, "z6")
	waiter := startHolder(t, server.Addr())
	until(t, "two in line", func() bool { return len(inLine(t, direct, "z6")) == 2 })
	got := make(chan lock.Handle, 1)
	go func() {
		h, err := b.Acquire(t.Context(), "z6")
		if err != nil {
			t.Errorf("the last: %v", err)
		}
		got <- h
	}()
	until(t, "three in line", func() bool { return len(inLine(t, direct, "z6")) == 3 })
	waiter.kill()
	killed := time.Now()
	release(t, h)
	if h := <-got; h != nil {
		release(t, h)
	}
	if took := time.Since(killed); took > ttl+2*time.Second {
		t.Errorf("the last was served %v after the one in front had been killed", took)
	}
}

// A process that is stopped for longer than its session lives is told of the loss as soon as
// it goes on.
func TestHolderIsStopped(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	l := lockerOn(t, zklock.Config{}, server.Addr())
	holder := startHolder(t, server.Addr())
	holder.says("held")
	holder.signal(syscall.SIGSTOP)
	h := acquire(t, l, "z6")
	holder.signal(syscall.SIGCONT)
	resumed := time.Now()
	holder.says("lost")
	if took := time.Since(resumed); took > 2*time.Second {
		t.Errorf("told %v after it went on", took)
	}
	time.Sleep(ttl / 4) // it connects again, and takes nothing back
	if err := h.Err(); err != nil {
		t.Error(err)
	}
	release(t, h)
}
