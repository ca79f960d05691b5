// A worker in Go: claims by long poll, keeps the lease while it works, settles by its token.
//   TENURE_API=http://127.0.0.1:8400 TENURE_TOKEN=tnr_… go run worker.go
package main

import ("bytes"; "context"; "encoding/json"; "fmt"; "net/http"; "os"; "time")

type object = map[string]any
type grant struct { Job struct { ID string; Payload json.RawMessage }; Token string }

func post(path string, body, answer any) error {
	text, _ := json.Marshal(body)
	ask, _ := http.NewRequest("POST", os.Getenv("TENURE_API")+"/api/v1/"+path, bytes.NewReader(text))
	ask.Header.Set("Authorization", "Bearer "+os.Getenv("TENURE_TOKEN"))
	ask.Header.Set("Content-Type", "application/json")
	got, err := (&http.Client{Timeout: 40 * time.Second}).Do(ask)
	if err != nil { return err }
	defer got.Body.Close()
	if got.StatusCode >= 400 { return fmt.Errorf("%s: %s", path, got.Status) }
	if got.StatusCode == 204 { return nil }
	return json.NewDecoder(got.Body).Decode(answer)
}

func handle(_ context.Context, payload json.RawMessage) (any, error) { return object{"echo": payload}, nil } // your work

func main() {
	worker, lease := fmt.Sprintf("go-%d", os.Getpid()), 60.0
	for {
		var claimed struct{ Grants []grant }
		if err := post("claims", object{"worker": worker, "queues": []string{"default"}, "lease_seconds": lease, "wait": 20}, &claimed); err != nil { time.Sleep(2 * time.Second) }
		for _, g := range claimed.Grants {
			held, stop := context.WithCancel(context.Background())
			go func() {
				for held.Err() == nil {
					time.Sleep(time.Duration(lease/3) * time.Second)
					var beat struct{ Lost, Cancel []string }
					if post("heartbeats", object{"worker": worker, "grants": []object{{"id": g.Job.ID, "token": g.Token}}, "lease_seconds": lease}, &beat) == nil && len(beat.Lost)+len(beat.Cancel) > 0 { stop() }
				}
			}()
			end := object{"id": g.Job.ID, "token": g.Token, "outcome": "complete"}
			if result, err := handle(held, g.Job.Payload); err != nil { end["outcome"], end["error"] = "fail", err.Error() } else { end["result"] = result }
			stop()
			if err := post("settlements", object{"results": []object{end}}, &object{}); err != nil { fmt.Fprintln(os.Stderr, err) }
		}
	}
}
