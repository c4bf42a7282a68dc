package filelock

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// A lock's file has parts at fixed places, each a line of text with a checksum before it:
// the header, two slots for tokens, the key, and the holder. A token is written to the
// slot of the older one, so that the newer survives if the power fails meanwhile; no two
// parts are in one sector of a disk.
const (
	sector   = 4096
	headerAt = 0 * sector
	slotsAt  = 1 * sector
	slotSize = 1 * sector
	keyAt    = 3 * sector
	holderAt = 5 * sector
	mostText = 2 * sector // of a part: a quoted key may be four times as long as itself
)

const header = "holdfast lock file, version 1"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writeLine writes a part.
func writeLine(f *os.File, at int64, text string) error {
	_, err := f.WriteAt([]byte(checksum(text)+" "+text+"\n"), at)
	return err
}

// readLine reads a part. ok is false if it was never written, or not wholly.
func readLine(f *os.File, at int64) (text string, ok bool, err error) {
	buf := make([]byte, mostText)
	n, err := f.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", false, err
	}
	line, _, ended := strings.Cut(string(buf[:n]), "\n")
	sum, text, _ := strings.Cut(line, " ")
	if !ended || sum != checksum(text) {
		return "", false, nil
	}
	return text, true, nil
}

func checksum(text string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), castagnoli))
}

// isNew says whether nothing was written to f yet. Its error says that f is not a lock, which
// holds only if nobody writes to it meanwhile.
func isNew(f *os.File) (bool, error) {
	text, ok, err := readLine(f, headerAt)
	if err != nil || ok && text == header {
		return false, err
	}
	// Without a header there may be the key, which was written before it, and zeros, which
	// are left if the power fails: see prepare.
	const most = holderAt + mostText
	content, err := io.ReadAll(io.NewSectionReader(f, 0, most+1))
	if err != nil {
		return false, err
	}
	if _, ok, err := readLine(f, keyAt); err != nil {
		return false, err
	} else if ok {
		clear(content[min(keyAt, len(content)):min(holderAt, len(content))])
	}
	if len(content) > most || strings.Trim(string(content), "\x00") != "" {
		return false, errForeign
	}
	return true, nil
}

var errForeign = errors.New("it is not a lock of Holdfast's")

// lastToken returns the greatest token that was written to f, or 0, and the slot for the
// next.
func lastToken(f *os.File) (last lock.Token, slot int64, err error) {
	for i := range int64(2) {
		text, ok, err := readLine(f, slotsAt+i*slotSize)
		if err != nil {
			return 0, 0, err
		}
		if token, err := strconv.ParseUint(text, 10, 64); ok && err == nil && lock.Token(token) > last {
			last, slot = lock.Token(token), 1-i
		}
	}
	return last, slot, nil
}

func writeToken(f *os.File, slot int64, token lock.Token) error {
	return writeLine(f, slotsAt+slot*slotSize, strconv.FormatUint(uint64(token), 10))
}

// holder is who has, or had, a lock.
type holder struct {
	token lock.Token
	since time.Time
	owner string
}

func writeHolder(f *os.File, h holder) error {
	return writeLine(f, holderAt, fmt.Sprintf("held %d %d %q", h.token, h.since.UnixMicro(), h.owner))
}

func writeFree(f *os.File) error { return writeLine(f, holderAt, "free") }

// readHolder reads who has, or had, f. false: nobody, or it was not said.
func readHolder(f *os.File) (h holder, held bool, err error) {
	text, ok, err := readLine(f, holderAt)
	if err != nil || !ok {
		return h, false, err
	}
	var token uint64
	var micros int64
	if _, err := fmt.Sscanf(text, "held %d %d %q", &token, &micros, &h.owner); err != nil {
		return h, false, nil //nolint:nilerr // it says "free"
	}
	h.token, h.since = lock.Token(token), time.UnixMicro(micros)
	return h, true, nil
}
