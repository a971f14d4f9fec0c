package hookstation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const stored = `{"id": "msg_1", "duplicate": false, "matched_consumers": 1,` +
	` "due_at": "2026-11-21T08:08:08.383Z", "url": "http://127.0.0.1/api/v1/messages/msg_1"}`

// recorder is a server that sends configured responses and records requests.
type recorder struct {
	*httptest.Server
	mutex    sync.Mutex
	requests []*http.Request
	bodies   []string
	at       []time.Time
}

// record starts a server that sends answers[n] for request n, and repeats the last one.
func record(t *testing.T, answers ...http.HandlerFunc) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(
		func(response http.ResponseWriter, request *http.Request) {
			body, _ := io.ReadAll(request.Body)
			r.mutex.Lock()
			answer := answers[min(len(r.requests), len(answers)-1)]
			r.requests = append(r.requests, request)
			r.bodies = append(r.bodies, string(body))
			r.at = append(r.at, time.Now())
			r.mutex.Unlock()
			answer(response, request)
		},
	))
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) count() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.requests)
}

// answer sends a status, a body and headers.
func answer(status int, body string, headers ...string) http.HandlerFunc {
	return func(response http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			response.Header().Set(headers[i], headers[i+1])
		}
		response.WriteHeader(status)
		fmt.Fprint(response, body)
	}
}

// hangUp closes the connection without a response.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func newClient(t *testing.T, urls []string, options ...Option) *Client {
	t.Helper()
	client, err := New(append([]Option{WithURL(urls...), WithKey("hsk_test")}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// deadURL is an address without a server.
func deadURL(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	return "http://" + listener.Addr().String()
}

func publish(t *testing.T, client *Client) {
	t.Helper()
	if _, err := client.Publish(context.Background(), "orders", Outgoing{Body: "x"}); err != nil {
		t.Fatal(err)
	}
}

func TestRepeatsOfAPublishCarryTheSameKeyAndBody(t *testing.T) {
	server := record(t, hangUp, answer(500, ""), answer(503, ""), answer(202, stored))
	client := newClient(t, []string{server.URL})

	publish(t, client)

	if server.count() != 4 {
		t.Fatalf("%d requests", server.count())
	}
	key := server.requests[0].Header.Get("Idempotency-Key")
	for i, request := range server.requests {
		if key == "" || request.Header.Get("Idempotency-Key") != key || server.bodies[i] != "x" {
			t.Errorf("request %d: %v %q", i, request.Header, server.bodies[i])
		}
	}
}

func TestTwoPublishesHaveDifferentKeys(t *testing.T) {
	server := record(t, answer(202, stored))
	client := newClient(t, []string{server.URL})

	publish(t, client)
	publish(t, client)

	first, second := server.requests[0].Header, server.requests[1].Header
	if first.Get("Idempotency-Key") == second.Get("Idempotency-Key") {
		t.Error("both have", first.Get("Idempotency-Key"))
	}
}

func TestRetryAfterDelaysTheRetry(t *testing.T) {
	server := record(t, answer(429, "", "Retry-After", "1"), answer(202, stored))

	publish(t, newClient(t, []string{server.URL}))

	if waited := server.at[1].Sub(server.at[0]); waited < time.Second {
		t.Error("waited", waited)
	}
}

func TestLongRetryAfterReturnsTheError(t *testing.T) {
	server := record(t, answer(429, `{"code": "over_quota"}`, "Retry-After", "61"))
	client := newClient(t, []string{server.URL})

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	_, err := client.Publish(ctx, "orders", Outgoing{})

	var refused *Error
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("it was waited for")
	}
	if !errors.As(err, &refused) || refused.RetryAfter != 61*time.Second || server.count() != 1 {
		t.Error(err, server.count())
	}
	if !errors.Is(err, ErrRateLimited) {
		t.Error("not ErrRateLimited:", err)
	}
}

func TestNonIdempotentCallsAreRetriedOnlyWithoutEffect(t *testing.T) {
	for name, first := range map[string]http.HandlerFunc{
		// A proxy sends a 503 without a code, and may have forwarded the request before.
		"no answer": hangUp, "500": answer(500, ""), "503": answer(503, ""), "504": answer(504, ""),
	} {
		server := record(t, first, answer(200, `{}`))
		client := newClient(t, []string{server.URL, server.URL})
		if _, err := client.ReplayDelivery(context.Background(), "dlv_1", ""); err == nil {
			t.Errorf("%s: repeated", name)
		}
	}
	const code = `{"code": "busy"}`
	server := record(t, answer(429, code), answer(503, code), answer(507, code), answer(200, `{}`))
	client := newClient(t, []string{server.URL})
	if _, err := client.ReplayDelivery(context.Background(), "dlv_1", ""); err != nil {
		t.Error(err)
	}
}

func TestClientUsesTheNextAddressAndKeepsIt(t *testing.T) {
	away := map[string]string{"refused": deadURL(t)}
	for name, first := range map[string]http.HandlerFunc{
		"reset": hangUp, "502": answer(502, ""), "503": answer(503, ""), "504": answer(504, ""),
	} {
		away[name] = record(t, first).URL
	}
	for name, url := range away {
		server := record(t, answer(202, stored))
		client := newClient(t, []string{url + "," + server.URL})
		began := time.Now()

		publish(t, client)
		publish(t, client)

		if server.count() != 2 {
			t.Errorf("%s: %d requests", name, server.count())
		}
		if took := time.Since(began); took > firstBackoff/2 {
			t.Errorf("%s: waited %s before the next address", name, took)
		}
		if client.urls[client.current.Load()] != server.URL {
			t.Errorf("%s: does not keep to the address that works", name)
		}
	}
}

// localhost has a record for IPv4 and, on most machines, one for IPv6, where no server listens
// here.
func TestEachAddressOfAHostNameIsTried(t *testing.T) {
	server := record(t, answer(202, stored))
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())

	publish(t, newClient(t, []string{"http://localhost:" + port}, WithRetries(0)))
}

func TestSilentAddressIsSkippedAfterTheTimeout(t *testing.T) {
	stuck := record(t, func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() })
	server := record(t, answer(202, stored))

	publish(t, newClient(t, []string{stuck.URL, server.URL}, WithTimeout(200*time.Millisecond)))

	if server.count() != 1 {
		t.Error(server.count())
	}
}

func TestRefusalIsFinalAtTheFirstAddress(t *testing.T) {
	first, second := record(t, answer(500, "")), record(t, answer(202, stored))
	refusing := record(t, answer(422, `{"code": "invalid_fields"}`))

	_, err := newClient(t, []string{refusing.URL, second.URL}).Channel(context.Background(), "orders")
	if !errors.Is(err, ErrBadRequest) || refusing.count() != 1 {
		t.Error(err)
	}
	_, _ = newClient(t, []string{first.URL, second.URL}, WithRetries(1)).
		Channel(context.Background(), "orders")
	if first.count() != 2 || second.count() != 0 {
		t.Error(first.count(), second.count())
	}
}

func TestWithoutRetriesOneTryIsMade(t *testing.T) {
	server := record(t, answer(503, ""))
	client := newClient(t, []string{server.URL, server.URL}, WithRetries(0))

	_, err := client.Channel(context.Background(), "orders")

	if !errors.Is(err, ErrUnavailable) || server.count() != 1 {
		t.Error(err, server.count())
	}
}

func TestFailedConnectionIsErrConnection(t *testing.T) {
	client := newClient(t, []string{deadURL(t)}, WithRetries(1))

	_, err := client.Channel(context.Background(), "orders")

	var failed *Error
	var network *net.OpError
	if !errors.As(err, &failed) || failed.Code != "not_sent" || !errors.Is(err, ErrConnection) {
		t.Error(err)
	}
	if !errors.As(err, &network) {
		t.Error("the cause is not there:", err)
	}
}

func TestCancelledContextEndsRetries(t *testing.T) {
	server := record(t, answer(503, "", "Retry-After", "30"))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()

	_, err := newClient(t, []string{server.URL}).Channel(ctx, "orders")

	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestProblemBecomesAnErrorWithCodeAndFields(t *testing.T) {
	problem := `{"code": "invalid_fields", "detail": "Two faults.", "errors": [
		{"field": "colour", "detail": "is unknown"}, {"field": "retry", "detail": "is no list"}]}`
	server := record(t, answer(422, problem))

	_, err := newClient(t, []string{server.URL}).CreateChannel(context.Background(), "a/b", nil)

	var refused *Error
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if refused.Code != "invalid_fields" || refused.Status != 422 || refused.Detail != "Two faults." ||
		refused.Fields["colour"] != "is unknown" || len(refused.Fields) != 2 {
		t.Errorf("%#v", refused)
	}
	if path := server.requests[0].URL.EscapedPath(); path != "/api/v1/channels/a%2Fb" {
		t.Error(path)
	}
	if server.bodies[0] != "{}" {
		t.Error(server.bodies[0])
	}
}

func TestBatchWithAnUnfetchableBodyIsReleased(t *testing.T) {
	server := record(t,
		answer(200, `{"messages": [{"id": "1", "lease": "a"}, {"id": "2", "lease": "b", "body_url": "/x"}]}`),
		answer(404, ""),
		answer(200, `{"done": [], "failed": []}`),
	)
	client := newClient(t, []string{server.URL})

	_, err := client.ReceiveBatch(context.Background(), "c", "all", ReceiveOptions{})

	if !errors.Is(err, ErrNotFound) || server.count() != 3 {
		t.Fatal(err, server.count())
	}
	if server.requests[2].URL.Path != "/api/v1/leases/release" ||
		server.bodies[2] != `{"leases":["a","b"]}` {
		t.Error(server.requests[2].URL, server.bodies[2])
	}
}

func TestProxyResponseIsAnError(t *testing.T) {
	for status, kind := range map[int]error{
		301: ErrBadRequest, 401: ErrUnauthorized, 403: ErrForbidden, 404: ErrNotFound, 409: ErrConflict,
		412: ErrConflict, 418: ErrBadRequest, 501: ErrUnavailable,
	} {
		server := record(t, answer(status, "<html>", "Location", "/elsewhere"))
		_, err := newClient(t, []string{server.URL}).Channel(context.Background(), "orders")
		if !errors.Is(err, kind) || server.count() != 1 {
			t.Errorf("%d: %v after %d requests", status, err, server.count())
		}
	}
}

func TestPublishSendsOptionsAsHeaders(t *testing.T) {
	server := record(t, answer(202, stored))
	client := newClient(t, []string{server.URL})
	at := time.Date(2030, 1, 1, 9, 0, 0, 0, time.FixedZone("", 3600))

	sent, err := client.Publish(context.Background(), "orders", Outgoing{
		Body:        map[string]string{"to": "<Zoë>"},
		EventType:   "order.created",
		ID:          "order-7",
		OrderingKey: "customer-4",
		Priority:    Ptr(0),
		DeliverAt:   at,
		DeliverIn:   1500 * time.Millisecond,
		Headers:     map[string]string{"X-Tenant": "blue"},
	})

	if err != nil || sent.ID != "msg_1" || sent.DueAt.Year() != 2026 {
		t.Fatal(sent, err)
	}
	for name, value := range map[string]string{
		"Authorization":               "Bearer hsk_test",
		"Content-Type":                "application/json",
		"Idempotency-Key":             "order-7",
		"Hookstation-Event-Type":      "order.created",
		"Hookstation-Ordering-Key":    "customer-4",
		"Hookstation-Priority":        "0",
		"Hookstation-Deliver-At":      "2030-01-01T08:00:00Z",
		"Hookstation-Delay":           "1500",
		"Hookstation-Header-X-Tenant": "blue",
	} {
		if found := server.requests[0].Header.Get(name); found != value {
			t.Errorf("%s: %q", name, found)
		}
	}
	if server.bodies[0] != `{"to":"<Zoë>"}` {
		t.Error(server.bodies[0])
	}
}

func TestNonASCIITextIsSentInTheBody(t *testing.T) {
	server := record(t, answer(207, `{"items": [{"status": 202, `+stored[1:]+`]}`))
	client := newClient(t, []string{server.URL})

	sent, err := client.Publish(context.Background(), "orders", Outgoing{
		Body: []byte{0xff}, OrderingKey: "Zürich",
	})

	if err != nil || sent.ID != "msg_1" {
		t.Fatal(sent, err)
	}
	var items []map[string]any
	if err := json.Unmarshal([]byte(server.bodies[0]), &items); err != nil {
		t.Fatal(err)
	}
	if items[0]["ordering_key"] != "Zürich" || items[0]["body_base64"] != "/w==" {
		t.Error(items)
	}
}

func TestListReadsOnlyTheNeededPages(t *testing.T) {
	server := record(t,
		answer(200, `{"items": [{"id": "a"}, {"id": "b"}], "next": "two"}`),
		answer(200, `{"items": [], "next": "three"}`),
		answer(200, `{"items": [{"id": "c"}], "next": null}`),
	)
	client := newClient(t, []string{server.URL})
	filter := MessageFilter{EventType: "order.*"}

	for range client.Messages(context.Background(), "orders", filter) {
		break
	}
	if server.count() != 1 {
		t.Fatal(server.count())
	}
	ids := []string{"a", "b"}
	for item, err := range client.Messages(context.Background(), "orders", filter) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, item.String("id"))
	}
	if strings.Join(ids, "") != "abc" {
		t.Error(ids)
	}
	query := server.requests[2].URL.Query()
	if query.Get("cursor") != "three" || query.Get("event_type") != "order.*" {
		t.Error(query)
	}
}

func TestBrokenPageEndsTheIterationWithItsError(t *testing.T) {
	server := record(t, answer(404, `{"code": "unknown_channel"}`))
	client := newClient(t, []string{server.URL})
	var failures []error

	for _, err := range client.Messages(context.Background(), "nowhere", MessageFilter{}) {
		failures = append(failures, err)
	}

	if len(failures) != 1 || !errors.Is(failures[0], ErrNotFound) {
		t.Error(failures)
	}
}

func TestNumbersKeepAllDigits(t *testing.T) {
	server := record(t, answer(200, `{"big": 9007199254740993}`))

	found, err := newClient(t, []string{server.URL}).Channel(context.Background(), "orders")

	if err != nil || found.Int("big") != 9007199254740993 {
		t.Error(found, err)
	}
}

func TestWaitsDoubleUpToALimit(t *testing.T) {
	failure := &Error{Status: 503}
	for retry, base := range []time.Duration{200e6, 400e6, 800e6, 1600e6, 3200e6, 6400e6, 12800e6, 20e9, 20e9} {
		for range 20 {
			wait, repeat := waitBeforeRetry(call{}, failure, retry, 9)
			if !repeat || wait < base/2 || wait >= base {
				t.Fatalf("retry %d: %s", retry, wait)
			}
		}
	}
	if _, repeat := waitBeforeRetry(call{}, failure, 9, 9); repeat {
		t.Error("repeated for ever")
	}
}

func TestRetryAfterMayBeADate(t *testing.T) {
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	for text, wait := range map[string]time.Duration{
		"":                              0,
		"soon":                          0,
		"-3":                            0,
		"1.5":                           1500 * time.Millisecond,
		"Sat, 21 Nov 2026 08:00:30 GMT": 30 * time.Second,
		"Sat, 21 Nov 2026 07:00:30 GMT": 0,
	} {
		if found := parseRetryAfter(text, now); found != wait {
			t.Errorf("%q: %s", text, found)
		}
	}
	if found := parseRetryAfter("1e300", now); found <= maxRetryAfter {
		t.Error(found)
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Setenv("HOOKSTATION_URL", "")
	t.Setenv("HOOKSTATION_KEY", "")
	for _, options := range [][]Option{
		nil,
		{WithURL("http://127.0.0.1")},
		{WithKey("hsk_")},
		{WithKey("hsk_"), WithURL("127.0.0.1:8000")},
		{WithKey("hsk_"), WithURL("ftp://127.0.0.1")},
	} {
		if _, err := New(options...); err == nil {
			t.Errorf("%d options are enough", len(options))
		}
	}
	t.Setenv("HOOKSTATION_URL", " http://a/ , http://b ")
	t.Setenv("HOOKSTATION_KEY", "hsk_")
	client, err := New()
	if err != nil || !slices.Equal(client.urls, []string{"http://a", "http://b"}) {
		t.Error(client, err)
	}
}

func TestTooManyLeasesAreRefusedByTheClient(t *testing.T) {
	client := newClient(t, []string{deadURL(t)})
	if _, err := client.Ack(context.Background(), make([]string, 101)...); err == nil ||
		errors.Is(err, ErrConnection) {
		t.Error(err)
	}
}

func TestNackErrorIsTruncated(t *testing.T) {
	server := record(t, answer(200, `{"done": ["a"], "failed": []}`))
	client := newClient(t, []string{server.URL})

	settled, err := client.Nack(context.Background(), NackOptions{Error: strings.Repeat("ü", 301)}, "a")

	if err != nil || !slices.Equal(settled.Done, []string{"a"}) {
		t.Fatal(settled, err)
	}
	if strings.Count(server.bodies[0], "ü") != 300 {
		t.Error(server.bodies[0])
	}
}
