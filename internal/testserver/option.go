package testserver

// Option changes how a server is started.
type Option func(*options)

type options struct {
	durable         bool
	args            []string
	data            string // a directory to serve
	tlsCert, tlsKey string
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

// TLS has the server speak TLS only, with the certificate and the key in those files.
// Redis does not take it.
func TLS(certFile, keyFile string) Option {
	return func(o *options) { o.tlsCert, o.tlsKey = certFile, keyFile }
}

func resolve(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}
