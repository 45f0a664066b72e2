// Reads a gzipped request of OTLP profiles from its input, by what an OpenTelemetry Collector reads it with, and writes the
// sum of each value as a line of JSON. go.mod has the newest collector, oldest.mod the oldest that knows these messages.
package main

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"log"
	"os"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

type answer struct {
	Service string           `json:"service"`
	Sums    map[string]int64 `json:"sums"`
}

func main() {
	packed, err := gzip.NewReader(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	bytes, err := io.ReadAll(packed)
	if err != nil {
		log.Fatal(err)
	}
	request := pprofileotlp.NewExportRequest()
	if err := request.UnmarshalProto(bytes); err != nil {
		log.Fatal(err)
	}
	profiles := request.Profiles()
	texts := profiles.Dictionary().StringTable()
	found := answer{Sums: map[string]int64{}}
	for _, resource := range profiles.ResourceProfiles().All() {
		if name, is := resource.Resource().Attributes().Get("service.name"); is {
			found.Service = name.Str()
		}
		for _, scope := range resource.ScopeProfiles().All() {
			for _, profile := range scope.Profiles().All() {
				name := texts.At(int(profile.SampleType().TypeStrindex()))
				found.Sums[name] += 0
				for _, sample := range profile.Samples().All() {
					for _, value := range sample.Values().All() {
						found.Sums[name] += value
					}
				}
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
