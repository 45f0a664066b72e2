// A receiver of profiles as Grafana Pyroscope is one, for the demonstration and for tests: it takes pushes by
// Pyroscope's own API, refuses what Pyroscope would refuse by default, and writes a line of JSON for each profile.
//
//	receiver -listen ADDRESS -out FILE
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"regexp"
	"sync"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
)

// Pyroscope's defaults for a tenant (validation.max-profile-size-bytes and its neighbours).
const (
	mostBytes      = 4 << 20
	mostSamples    = 16000
	mostFrames     = 1000
	mostLabels     = 30
	mostLabelName  = 1024
	mostLabelValue = 2048
)

var labelName = regexp.MustCompile("^[a-zA-Z_][a-zA-Z0-9_.]*$")

// A line of the output: sums of each value, in all and by the innermost function.
type line struct {
	Labels  map[string]string           `json:"labels"`
	Tenant  string                      `json:"tenant,omitempty"`
	Bytes   int                         `json:"bytes"`
	Samples int                         `json:"samples"`
	Sums    map[string]int64            `json:"sums"`
	Sites   map[string]map[string]int64 `json:"sites"`
}

type receiver struct {
	mutex sync.Mutex
	out   *json.Encoder
}

func (r *receiver) Push(_ context.Context, request *connect.Request[pushv1.PushRequest]) (*connect.Response[pushv1.PushResponse], error) {
	var lines []line
	for _, series := range request.Msg.Series {
		labels, err := checkLabels(series.Labels)
		for _, sample := range series.Samples {
			var one line
			if err == nil {
				one, err = checkProfile(sample.RawProfile)
			}
			one.Labels, one.Tenant = labels, request.Header().Get("X-Scope-OrgID")
			lines = append(lines, one)
		}
		if err != nil {
			log.Printf("refused: %v", err)
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, one := range lines {
		if err := r.out.Encode(one); err != nil {
			return nil, connect.NewError(connect.CodeUnavailable, err)
		}
	}
	return connect.NewResponse(&pushv1.PushResponse{}), nil
}

func checkLabels(pairs []*typesv1.LabelPair) (map[string]string, error) {
	labels := map[string]string{}
	last := ""
	for _, pair := range pairs {
		switch {
		case !labelName.MatchString(pair.Name) || len(pair.Name) > mostLabelName:
			return nil, fmt.Errorf("the name of the label %q is not possible", pair.Name)
		case pair.Value == "" || len(pair.Value) > mostLabelValue:
			return nil, fmt.Errorf("the value of the label %q is empty or too long", pair.Name)
		case pair.Name <= last:
			return nil, fmt.Errorf("the labels %q and %q are not in order", last, pair.Name)
		}
		labels[pair.Name], last = pair.Value, pair.Name
	}
	if labels["__name__"] == "" || labels["service_name"] == "" {
		return nil, errors.New("a series needs __name__ and service_name")
	}
	if len(labels) > mostLabels {
		return nil, fmt.Errorf("a series has %d labels", len(labels))
	}
	return labels, nil
}

func checkProfile(raw []byte) (line, error) {
	one := line{Bytes: len(raw), Sums: map[string]int64{}, Sites: map[string]map[string]int64{}}
	found, err := profile.Parse(bytes.NewReader(raw))
	if err == nil {
		err = found.CheckValid()
	}
	if err != nil {
		return one, err
	}
	var plain bytes.Buffer
	if err := found.WriteUncompressed(&plain); err != nil || plain.Len() > mostBytes {
		return one, fmt.Errorf("a profile of %d bytes: %v", plain.Len(), err)
	}
	if one.Samples = len(found.Sample); one.Samples > mostSamples {
		return one, fmt.Errorf("a profile of %d samples", one.Samples)
	}
	for at, value := range found.SampleType {
		sites := map[string]int64{}
		one.Sums[value.Type] = 0
		for _, sample := range found.Sample {
			if len(sample.Label)+len(sample.NumLabel) > 0 {
				return one, errors.New("a sample has labels, each of which becomes a series")
			}
			if len(sample.Location) > mostFrames {
				return one, fmt.Errorf("a stack of %d frames", len(sample.Location))
			}
			one.Sums[value.Type] += sample.Value[at]
			if lines := sample.Location[0].Line; len(lines) > 0 && sample.Value[at] != 0 {
				sites[lines[0].Function.Name] += sample.Value[at]
			}
		}
		one.Sites[value.Type] = sites
	}
	return one, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:4040", "address and port")
	out := flag.String("out", "profiles.jsonl", "where lines are appended to")
	flag.Parse()
	file, err := os.OpenFile(*out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(pushv1connect.NewPusherServiceHandler(&receiver{out: json.NewEncoder(file)}))
	log.Fatal(http.ListenAndServe(*listen, mux))
}
