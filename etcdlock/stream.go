package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// onStream returns a context for watches on the stream of that name: a client puts those with
// the same metadata on one.
func onStream(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "holdfast-session", name)
}

// sweep ends the streams of watches that have ended, as a client does not always do so itself,
// nor with their contexts: it keeps one, for as long as it lives, whose last watch ended before
// it was in place, as watches do that end in an outage. It is for when there is a connection
// again. What cannot be ended yet is left for the next time: after a Locker that is closed in an
// outage, for the end of the client.
func (b *backend) sweep(ctx context.Context) {
	b.mu.Lock()
	left := b.left
	b.left = nil
	b.mu.Unlock()
	for i, name := range left {
		if b.client.Ctx().Err() != nil {
			return // with all its streams
		}
		if !b.endStream(ctx, name) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.left = append(b.left, left[i:]...)
			return
		}
	}
}

// endStream ends a stream, and says whether it surely has ended. To have a watch in place there
// and end it is what makes the client end the stream with it; those that ended before are before
// it in the client's queue, so that none of them comes after it. A watch that is refused does as
// well. If the client has no such stream, it makes one, which ends in the same way.
func (b *backend) endStream(ctx context.Context, name string) bool {
	ctx, end := context.WithTimeout(onStream(ctx, name), b.limit)
	defer end()
	told := b.client.Watch(ctx, barrierName(b.prefix, ""), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-told
	if ctx.Err() != nil {
		return false
	}
	end()
	for range told { // until it has ended
	}
	return true
}
