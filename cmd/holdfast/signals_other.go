//go:build unix && !linux

package main

import "os"

func platformSignals() []os.Signal { return nil }
