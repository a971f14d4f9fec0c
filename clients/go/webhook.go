package hookstation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const maxBodyBytes = 16 << 20

// Event is a message as the broker delivered it to a push consumer.
type Event struct {
	// ID is the id of the message, the same in every attempt and replay.
	ID          string
	EventType   string
	Channel     string
	Consumer    string
	Attempt     int
	MaxAttempts int
	Priority    int
	OrderingKey string
	AcceptedAt  time.Time
	Replay      bool
	// Test is true for a test sample of the broker.
	Test bool
	// AckURL is the URL for a later acknowledgement; empty unless the consumer has "ack" on.
	AckURL      string
	ContentType string
	// Header has all headers of the request.
	Header http.Header
	Body   []byte
}

// JSON parses the body as JSON into a value. If a handler returns its error, the message is
// rejected, because a retry would have the same body.
func (e *Event) JSON(into any) error {
	if err := json.Unmarshal(e.Body, into); err != nil {
		return Reject("The body is invalid: " + err.Error())
	}
	return nil
}

// EventHandler handles an event. If it returns nil, the message is delivered; after [Retry] it is
// delivered again; after [Reject] the delivery is dead at once; after any other error the
// consumer's retry policy applies.
type EventHandler func(ctx context.Context, event *Event) error

// WebhookHandler is an [http.Handler] that receives signed webhooks: it verifies each request,
// recognizes repeats, and calls the first handler whose pattern matches the event type.
//
//	hooks := &hookstation.WebhookHandler{Secrets: []string{"whsec_..."}}
//	hooks.On("order.*", func(ctx context.Context, event *hookstation.Event) error { ... })
//	http.Handle("POST /hooks", hooks)
//
// Configure it before it serves.
type WebhookHandler struct {
	// Secrets are the consumer's signing secrets, several during a rotation; the default is
	// HOOKSTATION_SECRET.
	Secrets []string
	// Tolerance is the largest difference of a timestamp; 0 means [Tolerance].
	Tolerance time.Duration
	// Store stores handled messages, so that a repeat is acknowledged but not handled again. Without
	// one every delivery is handled.
	Store Store
	// MaxBodyBytes is the size above which a request is refused; the default is 16 MiB.
	MaxBodyBytes int64
	// HandleTests makes handlers receive test samples, which are otherwise acknowledged without one.
	HandleTests bool
	// Logger gets warnings; nil means [slog.Default].
	Logger *slog.Logger

	routes []route
}

type route struct {
	pattern string
	handle  EventHandler
}

// On registers a handler for event types: a name, a pattern such as "order.*", or "*". The first
// registered handler that matches is called. If none matches, the message is rejected.
func (h *WebhookHandler) On(pattern string, handle EventHandler) {
	h.routes = append(h.routes, route{pattern, handle})
}

// ServeHTTP handles a request of the broker.
func (h *WebhookHandler) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodPost {
		response.Header().Set("Allow", http.MethodPost)
		problemResponse(response, http.StatusMethodNotAllowed, "Webhooks are POST requests.")
		return
	}
	limit := orDefault(h.MaxBodyBytes, maxBodyBytes)
	if request.ContentLength < 0 {
		// The broker always sends Content-Length. Without it a body could be endless.
		problemResponse(response, http.StatusLengthRequired, "Content-Length is required.")
		return
	}
	if request.ContentLength > limit {
		response.Header().Set("Hookstation-Retry", "never")
		detail := fmt.Sprintf("The body is larger than %d bytes.", limit)
		problemResponse(response, http.StatusRequestEntityTooLarge, detail)
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		problemResponse(response, http.StatusBadRequest, "The body broke off.")
		return
	}
	if err := h.Handle(request.Context(), request.Header, body); err != nil {
		h.answer(response, err)
		return
	}
	response.WriteHeader(http.StatusNoContent)
}

// Handle verifies one request and calls its handler: for servers other than net/http. The error
// determines the response: [ErrSignature] 401, a [RejectError] 422 with "Hookstation-Retry: never",
// a [RetryError] 409 (503 with Pause) with Retry-After, any other 500.
func (h *WebhookHandler) Handle(ctx context.Context, header http.Header, body []byte) error {
	secrets := h.Secrets
	if len(secrets) == 0 && os.Getenv("HOOKSTATION_SECRET") != "" {
		secrets = []string{os.Getenv("HOOKSTATION_SECRET")}
	}
	verifier := Verifier{Secrets: secrets, Tolerance: h.Tolerance}
	if _, err := verifier.Verify(header, body); err != nil {
		return err
	}
	event := eventOf(header, body)
	if event.Test && !h.HandleTests {
		return nil
	}
	for _, route := range h.routes {
		if matches(route.pattern, event.EventType) {
			return h.once(ctx, event, route.handle)
		}
	}
	return Reject(fmt.Sprintf("No handler for the event type %q.", event.EventType))
}

// once calls the handler unless the store has the message.
func (h *WebhookHandler) once(ctx context.Context, event *Event, handle EventHandler) error {
	if h.Store == nil {
		return guard(ctx, event, handle)
	}
	claim, err := h.Store.Claim(ctx, event.ID)
	if err != nil || claim == nil {
		return err
	}
	if err := guard(ctx, event, handle); err != nil {
		return errors.Join(err, claim.Forget())
	}
	return claim.Done()
}

// guard turns a panic into an error, so that the claim is removed and the broker gets a response.
func guard(ctx context.Context, event *Event, handle EventHandler) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	return handle(ctx, event)
}

// answer writes the response for the error.
func (h *WebhookHandler) answer(response http.ResponseWriter, err error) {
	logger := orDefault(h.Logger, slog.Default())
	var retry *RetryError
	var reject *RejectError
	switch {
	case errors.Is(err, ErrSignature):
		logger.Warn("webhook refused", "error", err)
		problemResponse(response, http.StatusUnauthorized, err.Error())
	case errors.As(err, &reject):
		logger.Warn("message rejected", "error", err)
		response.Header().Set("Hookstation-Retry", "never")
		problemResponse(response, http.StatusUnprocessableEntity, err.Error())
	case errors.As(err, &retry):
		// After a 503 the broker pauses the whole consumer, after a 409 only this delivery.
		status := http.StatusConflict
		if retry.Pause {
			status = http.StatusServiceUnavailable
		}
		response.Header().Set("Retry-After", strconv.FormatInt(seconds(retry.After), 10))
		problemResponse(response, status, err.Error())
	default:
		// The detail may be confidential.
		logger.Error("handler failed", "error", err)
		problemResponse(response, http.StatusInternalServerError, "The handler failed.")
	}
}

func problemResponse(response http.ResponseWriter, status int, detail string) {
	content, _ := marshal(map[string]string{"detail": detail}) // strings can always be encoded
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_, _ = response.Write(content) // the broker retries after a broken connection
}

func eventOf(header http.Header, body []byte) *Event {
	number := func(name string, otherwise int) int {
		value, err := strconv.Atoi(header.Get(name))
		if err != nil {
			return otherwise
		}
		return value
	}
	accepted, _ := time.Parse(time.RFC3339Nano, header.Get("Hookstation-Accepted-At"))
	return &Event{
		ID:          header.Get("webhook-id"),
		EventType:   header.Get("Hookstation-Event-Type"),
		Channel:     header.Get("Hookstation-Channel"),
		Consumer:    header.Get("Hookstation-Consumer"),
		Attempt:     number("Hookstation-Attempt", 1),
		MaxAttempts: number("Hookstation-Max-Attempts", 1),
		Priority:    number("Hookstation-Priority", 4),
		OrderingKey: header.Get("Hookstation-Ordering-Key"),
		AcceptedAt:  accepted,
		Replay:      header.Get("Hookstation-Replay") == "true",
		Test:        header.Get("Hookstation-Test") == "true",
		AckURL:      header.Get("Hookstation-Ack-URL"),
		ContentType: header.Get("Content-Type"),
		Header:      header,
		Body:        body,
	}
}

// matches reports whether a pattern matches an event type, by the broker's rule.
func matches(pattern, eventType string) bool {
	if prefix, isWildcard := strings.CutSuffix(pattern, "*"); isWildcard && strings.HasSuffix(prefix, ".") {
		return strings.HasPrefix(eventType, prefix)
	}
	return pattern == "*" || (pattern == eventType && eventType != "")
}
