package conformance

import "github.com/holdfast-go/holdfast/lock"

var tokenCases = []Case{
	{"TokensGrow", "a token is greater than every earlier one of the key, over releases and holders", nil, func(k *check) {
		a, b := k.open(), k.open()
		var last lock.Token
		for i := range 12 {
			h := k.acquire([]lock.Locker{a, b}[i%2], k.key)
			last = k.greater(h, last)
			k.release(h)
		}
	}},
	{"TokensGrowOverLoss", "a token is greater than every earlier one, over the loss and the deletion of the lock", []fault{revoke}, func(k *check) {
		a, b := k.open(), k.open()
		var last lock.Token
		for i := range 4 {
			h := k.take([]lock.Locker{a, b}[i%2], k.key, k.ttl)
			last = k.greater(h, last)
			k.h.Revoke(k.T, k.key)
			k.awaitLoss(h, k.ttl+k.slack)
		}
	}},
	{"TokensGrowOverExpiry", "a token is greater than every earlier one, over the expiry of a holder that was cut off", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		last := k.greater(h, 0)
		heal := k.h.Isolate(k.T, a)
		defer heal()
		next := k.take(b, k.key, 3*k.ttl+k.slack)
		k.greater(next, last)
		k.release(next)
	}},
	{"TokensGrowOverRestart", "a token is greater than every earlier one, over a restart of the server", []fault{restart}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		last := k.greater(h, 0)
		k.release(h)
		k.h.Restart(k.T)
		h = k.take(b, k.key, 3*k.ttl+k.slack)
		last = k.greater(h, last)
		k.release(h)
		h = k.take(a, k.key, 3*k.ttl+k.slack)
		k.greater(h, last)
		k.release(h)
	}},
	{"TokenBase", "TokenBase lifts every token, and those that Inspect shows", []fault{openConfig}, func(k *check) {
		const base = 1 << 61
		h := k.acquire(k.openConfig(lock.Config{TokenBase: base}), k.key)
		if k.h.Promises&lock.Fencing != 0 && tokenOf(h) <= base {
			k.broken("token %d with a base of %d", tokenOf(h), lock.Token(base))
		}
		k.release(h)
	}},
}

// greater checks h's token against the last one, and returns it.
func (k *check) greater(h lock.Handle, last lock.Token) lock.Token {
	k.Helper()
	token, ok := h.Token()
	if promised := k.h.Promises&lock.Fencing != 0; ok != promised {
		k.broken("Token() says %v, and the feature fencing is %v", ok, promised)
	}
	if ok && token <= last {
		k.broken("token %d, want more than %d", token, last)
	}
	return token
}
