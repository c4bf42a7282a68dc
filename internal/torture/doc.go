// Package torture has the harnesses of this module's backends for conformance/torture,
// as tests: a file for each backend.
package torture
