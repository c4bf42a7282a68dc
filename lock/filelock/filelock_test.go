package filelock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

const ttl = 500 * time.Millisecond

var background = context.Background()

func open(t *testing.T, dir string, configure ...func(*lock.Config)) lock.Locker {
	t.Helper()
	cfg := lock.Config{TTL: ttl}
	for _, c := range configure {
		c(&cfg)
	}
	l, err := filelock.New(filelock.Config{Dir: dir, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func acquire(t *testing.T, l lock.Locker) (lock.Handle, lock.Token) {
	t.Helper()
	h, err := l.Acquire(t.Context(), "k", lock.Wait(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	token, _ := h.Token()
	return h, token
}

func release(t *testing.T, h lock.Handle) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func matches(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want an error that matches %q", what, err, w)
		}
	}
}

// A child that a holder starts does not inherit the lock.
func TestChildrenDoNotInherit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, _ := acquire(t, open(t, dir))
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	release(t, h)
	h, err := open(t, dir).TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("TryAcquire after the release, with a child that lives: %v", err)
	}
	release(t, h)
}

// waitInVain waits for a lock that is held, for so short that there may be no answer.
func waitInVain(t *testing.T, l lock.Locker, key string) {
	t.Helper()
	_, err := l.Acquire(t.Context(), key, lock.Wait(10*time.Millisecond))
	if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Acquire of %q: %v, want that it is held", key, err)
	}
}

// However often somebody waits in vain, it is one wait of the kernel's.
func TestWaitsInVain(t *testing.T) {
	dir := t.TempDir()
	h, _ := acquire(t, open(t, dir))
	l := open(t, dir)
	before := runtime.NumGoroutine()
	for range 100 {
		waitInVain(t, l, "k")
	}
	if more := runtime.NumGoroutine() - before; more > 10 {
		t.Errorf("%d goroutines are left by 100 waits", more)
	}
	release(t, h)
	h, _ = acquire(t, l)
	release(t, h)
}

// Nor does it cost a wait a Locker, or more than a few of a process.
func TestWaitsOfMany(t *testing.T) {
	dir := t.TempDir()
	holder := open(t, dir)
	const keys = 150
	for i := range keys {
		if _, err := holder.TryAcquire(t.Context(), fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	before := runtime.NumGoroutine()
	l := open(t, dir)
	for i := range keys {
		waitInVain(t, l, fmt.Sprint("k", i))
	}
	if more := runtime.NumGoroutine() - before; more > 80 {
		t.Errorf("%d goroutines are left by waits for %d locks", more, keys)
	}
	before = runtime.NumGoroutine()
	for range 20 {
		l := open(t, dir)
		waitInVain(t, l, "k0")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if more := runtime.NumGoroutine() - before; more > 10 {
		t.Errorf("%d goroutines are left by Lockers that are closed", more)
	}
	last := make(chan error, 1)
	go func() {
		h, err := l.Acquire(t.Context(), "k149", lock.Wait(20*time.Second)) // of which the kernel was not asked
		if err == nil {
			err = h.Release(t.Context())
		}
		last <- err
	}()
	if err := holder.Close(); err != nil {
		t.Error(err)
	}
	if err := <-last; err != nil {
		t.Error(err)
	}
}

// A child that is being started has the holder's file, too, for an instant.
func TestReleaseFreesForCopies(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc to find the descriptor in")
	}
	dir := t.TempDir()
	h, _ := acquire(t, open(t, dir))
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	copied := -1
	for _, d := range descriptors {
		if to, _ := os.Readlink(d); to == filepath.Join(dir, "k.lock") {
			n, _ := strconv.Atoi(filepath.Base(d))
			if copied, err = syscall.Dup(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	if copied < 0 {
		t.Fatal("the holder has no file")
	}
	defer syscall.Close(copied)
	release(t, h)
	h, err = open(t, dir).TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("TryAcquire: %v", err)
	}
	release(t, h)
}

func TestManyTakeTurns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const lockers, rounds = 8, 20
	var mu sync.Mutex
	inside, last := 0, lock.Token(0)
	var all sync.WaitGroup
	for range lockers {
		l := open(t, dir)
		all.Go(func() {
			for range rounds {
				h, token := acquire(t, l)
				mu.Lock()
				if inside++; inside != 1 || token <= last {
					t.Errorf("%d inside, token %d after %d", inside, token, last)
				}
				last = token
				inside--
				mu.Unlock()
				release(t, h)
			}
		})
	}
	all.Wait()
}

// Of the two slots the newer counts, and if that was written by half, the other.
func TestTokensSurvive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "k.lock")
	l := open(t, dir)
	next := func() lock.Token {
		h, token := acquire(t, l)
		release(t, h)
		return token
	}
	next()
	edit := func(change func(content []byte)) {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		change(content)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The clock was an hour ahead.
	ahead := lock.Token(time.Now().Add(time.Hour).UnixMicro())
	for slot := range int64(2) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := filelock.WriteToken(f, slot, ahead+lock.Token(slot)); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if got := next(); got != ahead+2 { // in slot 0
		t.Errorf("token %d, want the next after %d", got, ahead+1)
	}
	edit(func(c []byte) { copy(c[4096+20:4096+30], "0000000000") })
	if got := next(); got != ahead+2 { // after that of slot 1
		t.Errorf("token %d, want the next after %d, as the last was not written wholly", got, ahead+1)
	}
	edit(func(c []byte) { clear(c[4096 : 3*4096]) })
	if got := next(); got < lock.Token(time.Now().Add(-time.Minute).UnixMicro()) {
		t.Errorf("token %d with both slots gone, want the clock's time at least", got)
	}
	edit(func(c []byte) { clear(c) }) // as a failure of the power leaves a new file
	next()
}

// What is not a lock of ours is refused, by name, and left alone.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(path string) error{
		"a text":      func(path string) error { return os.WriteFile(path, []byte("12345\n"), 0o600) },
		"a long text": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 9000), 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a socket": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				l.(*net.UnixListener).SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"zeros first":   func(path string) error { return os.WriteFile(path, append(make([]byte, 512), "disk"...), 0o600) },
		"many zeros":    func(path string) error { return os.WriteFile(path, make([]byte, 1<<16), 0o600) },
		"another name":  func(path string) error { return linkLock(filepath.Dir(path), path) },
		"a link":        func(path string) error { return os.Symlink(filepath.Join(filepath.Dir(path), "target"), path) },
		"another key's": func(path string) error { return moveLock(filepath.Dir(path), path) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "k.lock")
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			content := func() []byte {
				if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
					return nil
				}
				content, _ := os.ReadFile(path)
				return content
			}
			before := content()
			l := open(t, dir)
			began := time.Now()
			_, err := l.Acquire(t.Context(), "k", lock.Wait(20*time.Second))
			if err == nil || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), path) {
				t.Errorf("Acquire: %v, want an error that names it", err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("Acquire came back after %v, want at once", took)
			}
			if _, err := l.Inspect(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("Inspect: %v, want an error that names it", err)
			}
			if !bytes.Equal(before, content()) {
				t.Error("it was changed")
			}
			if _, err := os.Stat(filepath.Join(dir, "target")); err == nil {
				t.Error("a link was followed")
			}
		})
	}
}

// moveLock has the lock of another key at path, and linkLock has it there, too.
func moveLock(dir, path string) error {
	if err := makeLock(dir); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "another.lock"), path)
}

func linkLock(dir, path string) error {
	if err := makeLock(dir); err != nil {
		return err
	}
	return os.Link(filepath.Join(dir, "another.lock"), path)
}

func makeLock(dir string) error {
	l, err := filelock.New(filelock.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer l.Close()
	h, err := l.TryAcquire(background, "another")
	if err != nil {
		return err
	}
	return h.Release(background)
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, filepath.Join(dir, "none")} {
		_, err := filelock.New(filelock.Config{Dir: dir})
		matches(t, dir, err, lock.ErrInvalid)
		if !strings.Contains(fmt.Sprint(err), dir) {
			t.Errorf("%q: %v, want an error that names it", dir, err)
		}
	}
	for _, url := range []string{"file:", "file:relative", "file://host/dir", "file://user@/" + dir, "file://" + dir + "#x", "file://" + dir + "?x=1", "file:///none"} {
		_, err := lock.Open(t.Context(), url)
		matches(t, url, err, lock.ErrInvalid)
	}
	l, err := lock.Open(t.Context(), "file://"+dir+"?ttl=1s&require=fencing,leased")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := lock.Open(t.Context(), "file://"+dir+"?require=shared"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("require=shared: %v, want ErrUnsupported", err)
	}
}

func TestSharedIsUnsupported(t *testing.T) {
	t.Parallel()
	_, err := open(t, t.TempDir()).TryAcquire(t.Context(), "k", lock.Shared())
	matches(t, "Shared", err, errors.ErrUnsupported)
}
