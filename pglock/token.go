package pglock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// epoch is what tokens are made of: the upper 32 of their 63 bits are its number, the
// lower 31 what the sequence gives, less its base.
//
// A sequence alone gives numbers again after a crash, for what it gave last may not have
// reached the disk; and a row that is would cost a flush with each lock. An epoch costs
// one. It is in force while the server runs: a crash empties the unlogged table that
// names it, and a row of another run, or one that came out of a backup, does not count.
// Then the next session takes a higher one, which is on the disk before anybody sees it,
// and not below the clock in seconds: so it is higher, too, than those that a replica or a
// backup may not know of.
//
// A session reads the epoch once. It ends with the server's run; but the epoch may also end
// before, when its 31 bits are used up. So whoever takes a new one moves the sequence
// ahead by as many numbers first: what others draw from then on is beyond the end of
// their epoch, and they read again. Since every number is drawn under the lock, and after
// those of all earlier holders, the epochs of one key never fall, and within an epoch
// the numbers rise.
type epoch struct{ number, base int64 }

const (
	sequenceBits = 31
	perEpoch     = 1 << sequenceBits
	lastEpoch    = 1<<32 - 1
)

// token returns the token for what the sequence gave. false: it is beyond the epoch.
func (e *epoch) token(value int64) (lock.Token, bool) {
	n := value - e.base
	if n <= 0 || n >= perEpoch {
		return 0, false
	}
	return lock.Token(e.number<<sequenceBits | n), true
}

// draw makes the token of a lock that was just taken.
func (g *grant) draw(ctx context.Context) error {
	if g.b.cfg.NoTokens {
		return nil
	}
	value := g.asked.value
	for range 3 {
		var ok bool
		if g.token, ok = g.s.epoch.Load().token(value); ok {
			return nil
		}
		if err := g.b.readEpochAgain(ctx, g.s); err != nil {
			return err
		}
		c := g.s.newCall()
		if err := g.s.ask(ctx, c, message(statementDraw, g.h.number)); err != nil {
			return err
		}
		value = c.value
	}
	return driver.Refused(errors.New("the epochs of tokens change faster than they can be read"))
}

// errElsewhere is for a session whose server is not the one that new connections reach.
var errElsewhere = errors.New("the server has been started again, or another has taken its place: " +
	"who connects now does not see the locks of this session")

// readEpochAgain reads the epoch for s, or takes a new one, on a connection of its own: it
// may have to wait for others who do the same. That connection may reach another server,
// after a failover. Its epochs are not for the numbers that the old one gives; and its
// locks are those that count, so the session ends.
func (b *backend) readEpochAgain(ctx context.Context, s *session) error {
	o := &opening{done: make(chan struct{})}
	var e *epoch
	b.mu.Lock()
	b.spawn(o, func(ctx context.Context) {
		conn, err := b.connect(ctx)
		if err != nil {
			o.err = connectFault(err)
			return
		}
		defer closeConn(conn)
		id, err := identify(ctx, conn, b.cfg)
		if err == nil && id.born != s.born {
			s.die(errElsewhere)
			err = driver.Refused(errElsewhere)
		}
		if err == nil {
			e, err = currentEpoch(ctx, conn, b.cfg.Schema, id)
		}
		o.err = err
	})
	b.mu.Unlock()
	select {
	case <-o.done:
		if o.err == nil {
			s.epoch.Store(e)
		}
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// currentEpoch returns the epoch in force, or takes a new one.
func currentEpoch(ctx context.Context, conn *pgconn.PgConn, schema string, id identity) (*epoch, error) {
	e, err := readEpoch(ctx, conn, schema, id)
	if err != nil || e != nil {
		return e, err
	}
	if e, err = takeEpoch(ctx, conn, schema, id); err != nil {
		return nil, err
	}
	if e.number > lastEpoch {
		return nil, driver.Permanent(fmt.Errorf("the epoch of tokens is %d, which 32 bits do not hold; "+
			"correct %s.epoch", e.number, quote(schema)))
	}
	return e, nil
}

// readEpoch returns nil if none is in force.
func readEpoch(ctx context.Context, conn *pgconn.PgConn, schema string, id identity) (*epoch, error) {
	q := quote(schema)
	return scanEpoch(ctx, conn, unhurried+fmt.Sprintf(
		"SELECT i.epoch, i.base FROM %s.incarnation i, %s.token t WHERE i.born = '%s' "+
			"AND i.writer %% 4294967296 = i.xmin::text::bigint AND t.last_value - i.base < %d", q, q, id.born, perEpoch-1))
}

// takeEpoch takes a new epoch, unless another has just done so: the row of the lasting
// table lets one at a time.
func takeEpoch(ctx context.Context, conn *pgconn.PgConn, schema string, id identity) (e *epoch, err error) {
	q := quote(schema)
	if _, err := exec(ctx, conn, begin+"SET LOCAL synchronous_commit = on; "+
		fmt.Sprintf("INSERT INTO %s.epoch (epoch) VALUES (0) ON CONFLICT DO NOTHING; SELECT FROM %s.epoch FOR UPDATE", q, q)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_, _ = exec(ctx, conn, "ROLLBACK")
		}
	}()
	if e, err = readEpoch(ctx, conn, schema, id); err != nil {
		return nil, err
	}
	if e == nil {
		e, err = scanEpoch(ctx, conn, fmt.Sprintf(
			"UPDATE %s.epoch SET epoch = greatest(epoch + 1, floor(extract(epoch FROM clock_timestamp()))::bigint); "+
				"DELETE FROM %s.incarnation; "+
				"INSERT INTO %s.incarnation (epoch, base, born, writer) "+
				"SELECT epoch, setval('%s.token', nextval('%s.token') + %d), '%s', txid_current() FROM %s.epoch RETURNING epoch, base",
			q, q, q, literal(q), literal(q), int64(perEpoch), id.born, q))
		if err == nil && e == nil {
			err = errors.New("no epoch could be taken")
		}
		if err != nil {
			return nil, err
		}
	}
	_, err = exec(ctx, conn, "COMMIT")
	return e, err
}

func scanEpoch(ctx context.Context, conn *pgconn.PgConn, sql string) (*epoch, error) {
	rows, err := exec(ctx, conn, sql)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	number, numberErr := strconv.ParseInt(rows[0][0], 10, 64)
	base, baseErr := strconv.ParseInt(rows[0][1], 10, 64)
	if err := errors.Join(numberErr, baseErr); err != nil {
		return nil, err
	}
	return &epoch{number, base}, nil
}
