package testserver

// Option changes how a server is started.
type Option func(*options)

type options struct {
	durable bool
	args    []string
}

// Durable makes the server keep, over Kill and Start, everything that it has
// answered for. Without it, what is left after them is not defined.
func Durable() Option {
	return func(o *options) { o.durable = true }
}

// Args adds arguments to the server's command line; they override what is there.
func Args(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

func resolve(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}
