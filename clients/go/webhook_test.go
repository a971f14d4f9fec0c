package hookstation

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	secret      = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret = "whsec_AAECAwQFBgcICQoLDA0ODw=="
)

func sign(t *testing.T, secret, id string, at time.Time, body string) http.Header {
	t.Helper()
	signature, err := Sign(secret, id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	header.Set("webhook-id", id)
	header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	header.Set("webhook-signature", signature)
	return header
}

// The test vector of the Standard Webhooks libraries.
func TestSignatureEqualsTheSpecification(t *testing.T) {
	at := time.Unix(1614265330, 0)

	found, err := Sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, []byte(`{"test": 2432232314}`))

	if err != nil || found != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(found, err)
	}
}

func TestVerifyAcceptsSignedWebhooks(t *testing.T) {
	header := sign(t, secret, "msg_1", time.Now(), "{}")
	header.Set("webhook-signature", "v1,AAAA v1a,BBBB "+header.Get("webhook-signature"))

	id, err := Verify(header, []byte("{}"), otherSecret, secret)

	if err != nil || id != "msg_1" {
		t.Error(id, err)
	}
}

func TestVerifyRefusesForgedAndOldWebhooks(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, change := range map[string]func(http.Header) (string, string){
		"body":         func(http.Header) (string, string) { return "{ }", secret },
		"secret":       func(http.Header) (string, string) { return "{}", otherSecret },
		"id":           func(h http.Header) (string, string) { h.Set("webhook-id", "x"); return "{}", secret },
		"no id":        func(h http.Header) (string, string) { h.Del("webhook-id"); return "{}", secret },
		"no signature": func(h http.Header) (string, string) { h.Del("webhook-signature"); return "{}", secret },
		"time": func(h http.Header) (string, string) {
			h.Set("webhook-timestamp", "1700000001")
			return "{}", secret
		},
		"no number": func(h http.Header) (string, string) {
			h.Set("webhook-timestamp", "+1700000000")
			return "{}", secret
		},
	} {
		header := sign(t, secret, "msg_1", now, "{}")
		body, key := change(header)
		verifier := Verifier{Secrets: []string{key}, Now: func() time.Time { return now }}
		if _, err := verifier.Verify(header, []byte(body)); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for off, isAccepted := range map[time.Duration]bool{
		299 * time.Second: true, -299 * time.Second: true, 301 * time.Second: false, -301 * time.Second: false,
	} {
		header := sign(t, secret, "msg_1", now, "{}")
		verifier := Verifier{Secrets: []string{secret}, Now: func() time.Time { return now.Add(off) }}
		if _, err := verifier.Verify(header, []byte("{}")); (err == nil) != isAccepted {
			t.Errorf("%s off: %v", off, err)
		}
	}
}

func TestInvalidSecretIsASeparateError(t *testing.T) {
	header := sign(t, secret, "msg_1", time.Now(), "{}")
	for _, unusable := range []string{"", "whsec_", "whsec_not base64!"} {
		if _, err := Verify(header, []byte("{}"), unusable); err == nil || errors.Is(err, ErrSignature) {
			t.Errorf("%q: %v", unusable, err)
		}
	}
	if _, err := Verify(header, []byte("{}")); err == nil || errors.Is(err, ErrSignature) {
		t.Error(err)
	}
}

// post posts a signed event to the handler.
func post(
	t *testing.T, handler http.Handler, id, eventType, body string, headers ...string,
) *http.Response {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	request, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range sign(t, secret, id, time.Now(), body) {
		request.Header[name] = values
	}
	request.Header.Set("Hookstation-Event-Type", eventType)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(content))
	return response
}

func newHandler() *WebhookHandler {
	return &WebhookHandler{
		Secrets: []string{secret}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func TestHandlerRespondsByTheError(t *testing.T) {
	for name, one := range map[string]struct {
		err     error
		status  int
		headers map[string]string
	}{
		"handled": {nil, 204, nil},
		"retry":   {Retry(1500*time.Millisecond, "later"), 409, map[string]string{"Retry-After": "2"}},
		"pause": {&RetryError{After: time.Minute, Pause: true}, 503,
			map[string]string{"Retry-After": "60"}},
		"reject": {Reject("no"), 422, map[string]string{"Hookstation-Retry": "never"}},
		"failed": {errors.New("password is 1234"), 500, nil},
	} {
		hooks := newHandler()
		hooks.On("order.*", func(context.Context, *Event) error { return one.err })
		response := post(t, hooks, "msg_1", "order.created", "{}")
		if response.StatusCode != one.status {
			t.Errorf("%s: %d", name, response.StatusCode)
		}
		for header, value := range one.headers {
			if response.Header.Get(header) != value {
				t.Errorf("%s: %v", name, response.Header)
			}
		}
		content, _ := io.ReadAll(response.Body)
		if bytes.Contains(content, []byte("1234")) {
			t.Errorf("%s: tells strangers %s", name, content)
		}
	}
}

func TestHandlerGetsTheWholeEvent(t *testing.T) {
	hooks := newHandler()
	var got *Event
	hooks.On("*", func(_ context.Context, event *Event) error { got = event; return nil })

	post(t, hooks, "msg_1", "order.created", `{"id": 7}`, "Hookstation-Attempt", "3",
		"Hookstation-Accepted-At", "2026-11-21T08:08:08.383Z", "Hookstation-Replay", "true")

	var order struct{ ID int }
	if got.ID != "msg_1" || got.EventType != "order.created" || got.Attempt != 3 || !got.Replay ||
		got.MaxAttempts != 1 || got.AcceptedAt.Year() != 2026 || got.JSON(&order) != nil || order.ID != 7 {
		t.Errorf("%+v %v", got, order)
	}
	var rejected *RejectError
	if err := got.JSON(&[]int{}); !errors.As(err, &rejected) {
		t.Error(err)
	}
}

func TestFirstMatchingHandlerIsCalled(t *testing.T) {
	hooks := newHandler()
	called := ""
	for _, pattern := range []string{"order", "order.*", "invoice.paid"} {
		hooks.On(pattern, func(context.Context, *Event) error { called += pattern + " "; return nil })
	}
	for _, eventType := range []string{"order.created.late", "order", "invoice.paid"} {
		post(t, hooks, eventType, eventType, "{}")
	}
	if called != "order.* order invoice.paid " {
		t.Error(called)
	}
	for _, eventType := range []string{"invoice.sent", "orders.created", ""} {
		if response := post(t, hooks, "msg_1", eventType, "{}"); response.StatusCode != 422 {
			t.Errorf("%q: %d", eventType, response.StatusCode)
		}
	}
}

func TestForgedAndInvalidRequestsReachNoHandler(t *testing.T) {
	hooks := newHandler()
	hooks.MaxBodyBytes = 10
	hooks.On("*", func(context.Context, *Event) error { t.Error("called"); return nil })

	if response := post(t, hooks, "msg_1", "a", "{}", "webhook-id", "msg_2"); response.StatusCode != 401 {
		t.Error(response.Status)
	}
	if response := post(t, hooks, "msg_1", "a", "12345678901"); response.StatusCode != 413 {
		t.Error(response.Status)
	}
	if response := post(t, hooks, "msg_1", "a", "{}", "Hookstation-Test", "true"); response.StatusCode != 204 {
		t.Error(response.Status)
	}
	server := httptest.NewServer(hooks)
	defer server.Close()
	response, err := http.Post(server.URL, "text/plain", io.MultiReader(strings.NewReader("x")))
	if err != nil || response.StatusCode != 411 {
		t.Error(response, err)
	}
	if response, err = http.Get(server.URL); err != nil || response.StatusCode != 405 {
		t.Error(response, err)
	}
}

func TestRepeatIsHandledOnceAndFailureIsRetried(t *testing.T) {
	name := filepath.Join(t.TempDir(), "handled")
	store, err := OpenFileStore(name)
	if err != nil {
		t.Fatal(err)
	}
	hooks := newHandler()
	hooks.Store = store
	calls := 0
	hooks.On("*", func(context.Context, *Event) error {
		calls++
		if calls == 1 {
			panic("no database")
		}
		return nil
	})
	statuses := func(store Store) string {
		hooks.Store = store
		return post(t, hooks, "msg_1", "a", "{}").Status[:3]
	}

	if found := statuses(store) + statuses(store) + statuses(store); found != "500204204" || calls != 2 {
		t.Fatal(found, calls)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	// Handled messages survive a kill; an incomplete line is ignored.
	file, _ := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	_, _ = file.WriteString("170000")
	file.Close()
	next, err := OpenFileStore(name)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if found := statuses(next); found != "204" || calls != 2 {
		t.Error(found, calls)
	}
	content, _ := os.ReadFile(name)
	if lines := strings.Count(string(content), "\n"); lines != 1 {
		t.Errorf("%q", content)
	}
}

func TestMessageBeingHandledIsRetriedLater(t *testing.T) {
	store := NewMemoryStore()
	claim, err := store.Claim(context.Background(), "msg_1")
	if err != nil || claim == nil {
		t.Fatal(claim, err)
	}
	var retry *RetryError
	if _, err := store.Claim(context.Background(), "msg_1"); !errors.As(err, &retry) {
		t.Error(err)
	}
	if err := claim.Forget(); err != nil {
		t.Fatal(err)
	}
	if claim, err = store.Claim(context.Background(), "msg_1"); err != nil || claim == nil {
		t.Error(claim, err)
	}
}

func TestStoreDeletesIdsAfterAWeek(t *testing.T) {
	store := NewMemoryStore()
	store.states["old"] = time.Now().Add(-keepFor - time.Minute).Unix()
	store.states["young"] = time.Now().Add(-keepFor + time.Minute).Unix()

	if claim, err := store.Claim(context.Background(), "young"); err != nil || claim != nil {
		t.Error(claim, err)
	}
	if claim, err := store.Claim(context.Background(), "old"); err != nil || claim == nil {
		t.Error(claim, err)
	}
}
