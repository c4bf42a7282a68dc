package pglock

import (
	"fmt"
	"strings"
	"time"
)

// The statements that a session has prepared. All but the last return one number.
const (
	statementTry        = "holdfast_try"
	statementTryShared  = "holdfast_try_shared"
	statementTryPast    = "holdfast_try_past"
	statementWait       = "holdfast_wait"
	statementWaitShared = "holdfast_wait_shared"
	statementJoin       = "holdfast_join"
	statementDraw       = "holdfast_draw"
	statementFree       = "holdfast_free"
	statementFreeShared = "holdfast_free_shared"
	statementFreeAll    = "holdfast_free_all"
	statementRaise      = "holdfast_raise"
	statementLower      = "holdfast_lower"
	statementRaised     = "holdfast_raised"
	statementBeat       = "holdfast_beat"
	statementTerminate  = "holdfast_terminate"
	statementInspect    = "holdfast_inspect"
)

// waitFunction is a function of a session that waits. The server's log would have two
// lines for each slice of a wait that ends with an error. It returns 0 at the end of a
// slice, and 1 when it has the lock. The lock may also have been granted at the very
// moment at which the slice ended; then it may be held twice, and the function returns 2.
// What waits for a flag keeps nothing.
const waitFunction = `CREATE FUNCTION pg_temp.holdfast_wait(n bigint, what text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	had boolean;
BEGIN
	IF what = 'shared' THEN
		PERFORM pg_advisory_lock_shared(n);
	ELSE
		PERFORM pg_advisory_lock(n);
	END IF;
	IF what = 'flag' THEN
		PERFORM pg_advisory_unlock_all();
	END IF;
	RETURN 1;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
	IF what = 'shared' THEN
		had := pg_try_advisory_lock_shared(n);
	ELSE
		had := pg_try_advisory_lock(n);
	END IF;
	IF NOT had THEN
		RETURN 0;
	END IF;
	IF what = 'flag' THEN
		PERFORM pg_advisory_unlock_all();
		RETURN 1;
	END IF;
	RETURN 2;
END $$`

// The object IDs of functions, which are fixed in the server's source.
const (
	functionTry        = 2882 // pg_try_advisory_lock(bigint)
	functionFree       = 2884 // pg_advisory_unlock(bigint)
	functionFreeShared = 2885 // pg_advisory_unlock_shared(bigint)
)

// statements returns their texts for a session with a backend of that process ID.
//
// Whatever takes, frees or proves something looks at the process ID first: behind a
// pooler that gives each transaction another backend, it does nothing there, and its
// null tells so. The branches of a CASE are evaluated in order, and only as far as it
// takes: the token is drawn when the lock is held.
//
// Those who have waited for a lock alone for longer than a slice raise a flag: they hold
// another lock, shared. At the end of each slice they leave the server's queue, and whoever
// stands behind them, wanting the lock shared, would be let in, again and again. So with
// the flag up nobody new is let in, nor stands in the queue, but waits for the flag to be
// taken down: unless somebody holds the lock alone, at whose end all are equal.
//
// To look at the flag is to try its lock alone: so two who look at once find each other.
// Whoever tries to get in then is told -1, asks whether it is raised, and goes past it if
// it is not.
//
// quiet says that the session has waitFunction.
func statements(pid int64, draw string, quiet bool) map[string]string {
	mine := fmt.Sprintf("AS SELECT CASE WHEN pg_backend_pid() = %d THEN CASE ", pid)
	const end = " ELSE 0 END END"
	// Both halves of a number are unsigned there, and one kind of lock has two of them.
	const ours = "locktype = 'advisory' AND objsubid = 1 " +
		"AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) " +
		"AND classid::bigint = ($1 >> 32) & 4294967295 AND objid::bigint = $1 & 4294967295"
	const down = "CASE WHEN pg_try_advisory_lock($2) THEN pg_advisory_unlock($2) ELSE false END"
	const heldAlone = "EXISTS (SELECT FROM pg_locks WHERE granted AND mode = 'ExclusiveLock' AND " + ours + ")"
	number, numbers := "(bigint) "+mine, "(bigint, bigint) "+mine
	wait := map[string]string{
		"alone":  "WHEN pg_advisory_lock($1) IS NOT NULL THEN " + draw,
		"shared": "CASE WHEN pg_advisory_lock_shared($1) IS NOT NULL THEN " + draw + " END",
		"flag":   "WHEN pg_advisory_lock($2) IS NOT NULL AND pg_advisory_unlock($2) THEN -1",
	}
	if quiet {
		granted := " WHEN 1 THEN " + draw + " WHEN 2 THEN -1 - " + draw + " ELSE 0 END"
		wait = map[string]string{
			"alone":  "WHEN true THEN CASE pg_temp.holdfast_wait($1, 'alone')" + granted,
			"shared": "CASE pg_temp.holdfast_wait($1, 'shared')" + granted,
			"flag":   "WHEN pg_temp.holdfast_wait($2, 'flag') = 1 THEN -1",
		}
	}
	return map[string]string{
		statementTry:        numbers + "WHEN pg_try_advisory_lock($1) THEN " + draw + end,
		statementTryShared:  numbers + "WHEN NOT " + down + " THEN -1 WHEN pg_try_advisory_lock_shared($1) THEN " + draw + end,
		statementTryPast:    number + "WHEN pg_try_advisory_lock_shared($1) THEN " + draw + end,
		statementWait:       numbers + wait["alone"] + end,
		statementWaitShared: numbers + "WHEN " + down + " OR " + heldAlone + " THEN " + wait["shared"] + " " + wait["flag"] + end,
		statementJoin:       numbers + "WHEN " + down + " THEN " + draw + " ELSE -1 END END",
		statementDraw:       number + "WHEN true THEN " + draw + end,
		statementFree:       number + "WHEN pg_advisory_unlock($1) THEN 1::bigint" + end,
		statementFreeShared: number + "WHEN pg_advisory_unlock_shared($1) THEN 1::bigint" + end,
		statementFreeAll:    "AS SELECT CASE WHEN pg_backend_pid() = " + fmt.Sprint(pid) + " AND pg_advisory_unlock_all() IS NOT NULL THEN 1::bigint END",
		statementRaise:      number + "WHEN pg_try_advisory_lock_shared($1) THEN 1::bigint" + end,
		statementLower:      number + "WHEN pg_advisory_unlock_shared($1) THEN 1::bigint" + end,
		statementRaised:     number + "WHEN EXISTS (SELECT FROM pg_locks WHERE granted AND mode = 'ShareLock' AND " + ours + ") THEN 1::bigint" + end,
		statementBeat:       "AS SELECT pg_backend_pid()::bigint",
		statementTerminate: "(bigint, bigint) AS SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity " +
			"WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2",
		statementInspect: "(bigint) AS SELECT granted, mode, coalesce(application_name, '') " +
			"FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE " + ours,
	}
}

// settings are what a session sets, whatever was set for its role or its database. The
// locks of a session whose client is silent for a TTL are freed; the rest of the limits
// would end what must not be ended, or do nothing. Tokens do not need their numbers to be
// on the disk: see epoch.
func settings(version int, ttl, slice time.Duration) string {
	ms := (ttl + time.Millisecond - 1) / time.Millisecond
	// Linux takes no more than 32767 seconds between two signs of life, but more of them.
	seconds := int64((ttl + time.Second - 1) / time.Second)
	every := min(max(1, (seconds+2)/3), 32767)
	count := max(3, (seconds-1)/every)
	set := []string{
		"search_path = pg_catalog",
		"client_min_messages = error",
		"statement_timeout = 0",
		fmt.Sprintf("lock_timeout = %d", max(1, slice.Milliseconds())),
		"idle_in_transaction_session_timeout = 0",
		"default_transaction_isolation = 'read committed'",
		"default_transaction_read_only = off",
		"synchronous_commit = off",
		"plan_cache_mode = force_generic_plan",
		"jit = off",
		// Where there is no limit for idle sessions (before version 14), these free the
		// locks of a machine that has vanished; not before the TTL is over.
		fmt.Sprintf("tcp_keepalives_idle = %d", every),
		fmt.Sprintf("tcp_keepalives_interval = %d", every),
		fmt.Sprintf("tcp_keepalives_count = %d", count),
		fmt.Sprintf("tcp_user_timeout = %d", ms),
	}
	if version >= 140000 {
		set = append(set, fmt.Sprintf("idle_session_timeout = %d", ms))
	}
	if version >= 170000 {
		set = append(set, "transaction_timeout = 0")
	}
	return "SET " + strings.Join(set, "; SET ")
}

func quote(identifier string) string {
	return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"`
}
