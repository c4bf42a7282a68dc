package filelock

import (
	"os"
	"time"
)

// FileName is where the lock on key is.
var FileName = fileName

// WriteToken writes a slot.
var WriteToken = writeToken

// WriteKilled has f say that a process holds it that was killed.
func WriteKilled(f *os.File) error {
	return writeHolder(f, holder{token: 1, since: time.UnixMicro(0), owner: "killed"})
}
