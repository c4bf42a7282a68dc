//go:build linux || darwin

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkRun measures what a lock costs a program, as whole processes: alone, under
// flock(1), and under holdfast on files, in turn; and one synced write in the same
// directory, which is what tokens that survive a power failure cost. Its figures are
// medians.
func BenchmarkRun(b *testing.B) {
	flock, err := exec.LookPath("flock")
	if err != nil {
		b.Skip("needs flock(1)")
	}
	holdfast, err := build()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	process := func(args ...string) func() error {
		return func() error { return exec.Command(args[0], args[1:]...).Run() }
	}
	steps := []struct {
		name string
		do   func() error
		took []time.Duration
	}{
		{name: "program", do: process("true")},
		{name: "flock", do: process(flock, filepath.Join(dir, "flock"), "true")},
		{name: "sync", do: func() error { return writeSynced(filepath.Join(dir, "sync")) }},
		{name: "holdfast", do: process(holdfast, "run", "--url", "file://"+dir, "k", "--", "true")},
	}
	for b.Loop() {
		for i := range steps {
			begin := time.Now()
			if err := steps[i].do(); err != nil {
				b.Fatal(steps[i].name, err)
			}
			steps[i].took = append(steps[i].took, time.Since(begin))
		}
	}
	medians := make(map[string]float64)
	for _, s := range steps {
		slices.Sort(s.took)
		medians[s.name] = s.took[len(s.took)/2].Seconds() * 1000
		b.ReportMetric(medians[s.name], s.name+"-ms")
	}
	b.ReportMetric(medians["holdfast"]-medians["program"], "overhead-ms")
	b.ReportMetric(medians["holdfast"]-medians["flock"]-medians["sync"], "over-flock-and-sync-ms")
	b.ReportMetric(0, "ns/op") // of all together: means nothing
}

func writeSynced(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.WriteString("token"); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
