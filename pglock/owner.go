package pglock

import (
	"fmt"
	"strings"
)

// A session's application_name tells whose it is to all who look at the server's sessions,
// Inspect among them. It takes 63 bytes of ASCII.
const (
	namePrefix = "holdfast "
	maxName    = 63
	cut        = "~" // at the end of an owner that does not fit
)

// applicationName returns the name for an owner.
func applicationName(owner string) string {
	var b strings.Builder
	b.WriteString(namePrefix)
	for _, c := range []byte(owner) {
		char := string(rune(c))
		if c < ' ' || c > '}' || c == '%' {
			char = fmt.Sprintf("%%%02X", c)
		}
		if b.Len()+len(char)+len(cut) > maxName {
			b.WriteString(cut)
			break
		}
		b.WriteString(char)
	}
	return b.String()
}

// ownerOf returns the owner that a name tells of, or "" if it tells of none, or of a part.
func ownerOf(name string) string {
	text, ok := strings.CutPrefix(name, namePrefix)
	if !ok || strings.HasSuffix(text, cut) {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		var c byte
		if _, err := fmt.Sscanf(text[i:min(i+3, len(text))], "%%%02X", &c); err != nil {
			return ""
		}
		b.WriteByte(c)
		i += 2
	}
	return b.String()
}
