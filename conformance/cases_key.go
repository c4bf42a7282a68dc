package conformance

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/lock"
)

// strange are keys that look alike, contain one another, or mean something to one
// server or another.
var strange = []string{
	"a", "ab", "abc", "A", "a ", " a", " ", "a b", "a\n", "\n", "\t", "\r\n",
	"a/", "/a", "//a", "a//b", "a/b", "a/../b", "a/./b", "/", ".", "..", "a-b", "a_b", "a.b", "a:b", "a|b", "a,b",
	"a%2Fb", "a%", "%", "%00", "a\x00", "a\x00b", "\x00", "\x01", "\u007f", "\xff\xfe", "\xc3", "é", "e\u0301",
	"\ufff0", "\U000F0000", "日本", "1", "01", "-1", "*", "?", "[a]", "\\", "'", "\"", "`", "$1", "#", "a#b", "~",
	"{a}:{b}", "x{y", "}x", "{}x", "a{}b", "{", "}", "{}", "user:{42}:lock", "{{z}}", "{a}",
	"zookeeper", "/zookeeper", "lock-0000000001", "_c_0-lock-0000000001", "file:///v/x", "CON", "con",
	"plumless", "buckeroo", "costarring", "liquid", // collide in 32-bit hashes
}

var keyCases = []Case{
	{"KeysAreDistinct", "a key is any text, and distinct keys never touch each other", nil, func(k *check) {
		a, b := k.open(), k.open()
		held := make([]lock.Handle, len(strange))
		for i, text := range strange {
			held[i] = k.freeKey(a, text)
		}
		for i, text := range strange {
			k.taken(b, text)
			k.release(held[i])
			k.release(k.freeKey(b, text))
			if next := i + 1; next < len(strange) {
				k.held(held[next])
				k.taken(b, strange[next])
			}
		}
	}},
	{"KeyPrefixIsAnotherKey", "a key that is the beginning of another has nothing to do with it", nil, func(k *check) {
		a, b := k.open(), k.open()
		base := k.newKey("prefix")
		long := k.acquire(a, base+"-0")
		short := k.freeKey(b, base)
		longer := k.freeKey(b, base+"-01")
		slash := k.freeKey(b, base+"/")
		k.taken(b, base+"-0")
		k.release(short)
		k.held(long)
		k.taken(b, base+"-0")
		k.taken(a, base+"-01")
		k.release(long)
		k.held(longer)
		k.release(longer)
		k.release(slash)
	}},
	{"KeyLength", "a key has 1 to 1024 bytes, and others are ErrInvalid for every call", nil, func(k *check) {
		l := k.open()
		tail := k.newKey("")
		long := strings.Repeat("x", lock.MaxKeyLen-len(tail)) + tail
		first, second := "y"+long[1:], "z"+long[1:]
		h := k.freeKey(l, first)
		k.release(k.freeKey(l, second))
		k.release(h)
		for _, key := range []string{"", long + "x", strings.Repeat("x", 1<<20)} {
			_, tryErr := k.try(l, key)
			_, err := k.tryAcquireWith(k.ctx, l, key, true)
			_, infoErr := l.Inspect(k.ctx, key)
			for _, err := range []error{tryErr, err, infoErr} {
				if !errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrHeld) {
					k.broken("a key of %d bytes: error %v, want ErrInvalid", len(key), err)
				}
			}
		}
	}},
	{"ManyKeys", "many locks of one Locker are held and renewed together", nil, func(k *check) {
		const n = 200
		a, b := k.open(), k.open()
		base := k.newKey("many")
		held := make([]lock.Handle, n)
		for i := range held {
			held[i] = k.freeKey(a, fmt.Sprint(base, "-", i))
		}
		k.pause(k.ttl * 3 / 2)
		for i, h := range held {
			k.held(h)
			if i%20 == 0 {
				k.taken(b, h.Key())
			}
			k.release(h)
		}
	}},
}

func (k *check) freeKey(l lock.Locker, key string) lock.Handle {
	k.Helper()
	h, err := k.try(l, key)
	if err != nil {
		k.broken("TryAcquire(%q) with only other keys held: %v", key, err)
	}
	return h
}
