package etcdlock_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// twiceKV carries each transaction out twice, and tells of the second, as a client does that
// sends again what somebody on the way has cancelled.
type twiceKV struct{ clientv3.KV }

func (k twiceKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if op.IsTxn() {
		if resp, err := k.KV.Do(ctx, op); err != nil {
			return resp, err
		}
	}
	return k.KV.Do(ctx, op)
}

// A client that sends a request twice takes neither the lock from its caller nor makes a ghost
// of it.
func TestClientSendsTwice(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	c := dial(t, s.Addr())
	c.KV = twiceKV{c.KV}
	l, other := lockerOn(t, c, etcdlock.Config{}), lockerOn(t, direct, etcdlock.Config{})
	for name, acquire := range map[string]func(t *testing.T) (lock.Handle, error){
		"at once": func(t *testing.T) (lock.Handle, error) { return l.TryAcquire(t.Context(), "one") },
		"free":    func(t *testing.T) (lock.Handle, error) { return l.Acquire(t.Context(), "one") },
		"shared":  func(t *testing.T) (lock.Handle, error) { return l.Acquire(t.Context(), "one", lock.Shared()) },
		"taken": func(t *testing.T) (lock.Handle, error) {
			h := must(t)(other.TryAcquire(t.Context(), "one"))
			next := wait(t, l, "one")
			until(t, func() bool { return waiters(t, other, "one") == 1 })
			release(t, h)
			return next(), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := must(t)(acquire(t))
			stillHeld(t, direct, h)
			release(t, h)
			nothingLeft(t, direct, "one")
		})
	}
}

// cancelling is a server on the way to which somebody cancels each transaction that puts a lock.
type cancelling struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer

	mu   sync.Mutex
	sent map[string]int // how often each was
}

func (s *cancelling) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{}}, nil
}

func (s *cancelling) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{}, ID: 7, TTL: r.TTL}, nil
}

func (s *cancelling) LeaseRevoke(context.Context, *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{}}, nil
}

func (s *cancelling) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	for _, op := range r.Success {
		if put := op.GetRequestPut(); put != nil && strings.HasPrefix(string(put.Key), "/holdfast/{one}/") {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sent[string(put.Value)]++
			return nil, status.Error(codes.Canceled, "by somebody on the way")
		}
	}
	return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 2}, Succeeded: true}, nil
}

// serve serves what is registered, and returns where.
func serve(t *testing.T, register func(*grpc.Server)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	register(g)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	return l.Addr().String()
}

// A client that was made for the Locker sends nothing again of which a copy may be under way.
func TestNothingIsSentTwice(t *testing.T) {
	s := &cancelling{sent: make(map[string]int)}
	addr := serve(t, func(g *grpc.Server) {
		pb.RegisterKVServer(g, s)
		pb.RegisterLeaseServer(g, s)
	})

	locker := openURL(t, "etcd://"+addr)
	_, err := locker.TryAcquire(t.Context(), "one")
	matches(t, "TryAcquire", err, lock.ErrUnavailable)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) != 1 {
		t.Errorf("%d requests were sent, want 1", len(s.sent))
	}
	for request, n := range s.sent {
		if n != 1 {
			t.Errorf("%q was sent %d times", request, n)
		}
	}
}
