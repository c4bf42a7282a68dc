package filelock_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

// As another process, the tests hold a lock until they are killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FILELOCK_TEST_HOLD"); dir != "" {
		holdForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

func holdForEver(dir string) {
	l, err := filelock.New(filelock.Config{Dir: dir, Config: lock.Config{Owner: "another process"}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	h, err := l.TryAcquire(background, "k")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	token, _ := h.Token()
	fmt.Println("token", token)
	<-h.Lost()
	os.Exit(1)
}

// holder is another process that holds the lock.
type holder struct {
	*exec.Cmd
	token lock.Token
}

func startHolder(t *testing.T, dir string) *holder {
	t.Helper()
	h := &holder{Cmd: exec.Command(os.Args[0])} //nolint:gosec // itself
	h.Env = append(os.Environ(), "FILELOCK_TEST_HOLD="+dir)
	out, err := h.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kill)
	line, _ := bufio.NewReader(out).ReadString('\n')
	if _, err := fmt.Sscanf(line, "token %d", &h.token); err != nil {
		t.Fatalf("the other process says: %s", strings.TrimSpace(line))
	}
	return h
}

func (h *holder) kill() {
	_ = h.Process.Kill()
	_ = h.Wait()
}
