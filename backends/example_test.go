package backends_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/backends"
	"github.com/holdfast-go/holdfast/lock"
)

// A program whose settings are a YAML file, of which the lock is a part.
func ExampleConfig_yaml() {
	const file = `
listen: :8080
lock:
  url: mem:reports # redis://redis.example.com/0, with user and password
  ttl: 10s
  owner: reporter
  require: [fencing, leased]
`
	var settings struct {
		Listen string
		Lock   backends.Config
	}
	decoder := yaml.NewDecoder(strings.NewReader(file))
	decoder.KnownFields(true) // a misspelt field is an error
	if err := decoder.Decode(&settings); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	locker, err := settings.Lock.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = lock.Do(ctx, locker, "nightly-report", func(context.Context, lock.Handle) error {
		fmt.Println("reporting, alone")
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Output: reporting, alone
}

// A program whose settings are a JSON file.
func ExampleConfig_json() {
	const file = `{
		"url": "redis://redis.example.com/0",
		"user": "app",
		"password": "as it is: @/?#%",
		"tll": "10s"
	}`
	var cfg backends.Config
	decoder := json.NewDecoder(strings.NewReader(file))
	decoder.DisallowUnknownFields() // a misspelt field is an error
	if err := decoder.Decode(&cfg); err != nil {
		fmt.Println(err)
		return
	}
	locker, err := cfg.Open(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	// Output: json: unknown field "tll"
}
