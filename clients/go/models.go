package hookstation

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

// Outgoing is one message to publish.
type Outgoing struct {
	// Body is sent as it is if it is a []byte or a string, else as JSON.
	Body any
	// EventType is the type by which consumers filter, such as "order.created".
	EventType string
	// ID is the idempotency key: the broker does not store a second message with the same one. Without
	// it the client generates one, which its retries of this call share.
	ID string
	// OrderingKey groups messages that are delivered in order.
	OrderingKey string
	// Priority is 0 to 9; nil is the channel's default.
	Priority *int
	// DeliverAt is the earliest time of delivery; the zero time is now.
	DeliverAt time.Time
	// DeliverIn is the delay until then, by the broker's clock.
	DeliverIn time.Duration
	// Spread distributes deliveries over this time.
	Spread time.Duration
	// ExpiresAt is the time after which the message is not delivered any more; the zero time is never.
	ExpiresAt time.Time
	// ProducerSeq is a number by which the broker finds gaps in what a producer sends.
	ProducerSeq *int64
	// Headers are forwarded to the consumers.
	Headers map[string]string
	// ContentType is the content type of the body; the default depends on the type of Body.
	ContentType string
}

// Message is a message that the broker has stored.
type Message struct {
	ID string `json:"id"`
	// Duplicate is true if an earlier request with the same ID stored it, so that this one stored
	// nothing.
	Duplicate        bool      `json:"duplicate"`
	MatchedConsumers int       `json:"matched_consumers"`
	DueAt            time.Time `json:"due_at"`
	URL              string    `json:"url"`
}

// BatchResult is the result for one message of a batch: Message, or Err if it was refused.
type BatchResult struct {
	Message *Message
	Err     error
}

// Settled lists the leases that a call settled, and those that it did not settle.
type Settled struct {
	// Done are the leases that were settled.
	Done []string
	// Failed maps the other leases to the reason: "expired", "unknown" or "too_long".
	Failed map[string]string
}

// UnmarshalJSON parses the broker's response.
func (s *Settled) UnmarshalJSON(content []byte) error {
	var said struct {
		Done   []string
		Failed []struct{ Lease, Error string }
	}
	if err := json.Unmarshal(content, &said); err != nil {
		return err
	}
	s.Done, s.Failed = said.Done, map[string]string{}
	for _, one := range said.Failed {
		s.Failed[one.Lease] = one.Error
	}
	return nil
}

// withID returns the message with an idempotency key.
func (m Outgoing) withID() Outgoing {
	if m.ID == "" {
		m.ID = newID()
	}
	return m
}

// content returns the bytes of the body and their content type.
func (m Outgoing) content() ([]byte, string, error) {
	content, kind, err := encodeBody(m.Body)
	if m.ContentType != "" {
		kind = m.ContentType
	}
	return content, kind, err
}

func encodeBody(body any) ([]byte, string, error) {
	switch body := body.(type) {
	case []byte:
		return body, "application/octet-stream", nil
	case string:
		return []byte(body), "text/plain; charset=utf-8", nil
	}
	content, err := marshal(body)
	if err != nil {
		return nil, "", fmt.Errorf("hookstation: the body cannot be encoded: %w", err)
	}
	return content, "application/json", nil
}

// header returns the headers of a single publish (docs/api.md, "Publish").
func (m Outgoing) header(contentType string) http.Header {
	header := http.Header{"Content-Type": {contentType}}
	set := func(name, value string) {
		if value != "" {
			header.Set(name, value)
		}
	}
	set("Idempotency-Key", m.ID)
	set("Hookstation-Event-Type", m.EventType)
	set("Hookstation-Ordering-Key", m.OrderingKey)
	if m.Priority != nil {
		set("Hookstation-Priority", strconv.Itoa(*m.Priority))
	}
	set("Hookstation-Deliver-At", instant(m.DeliverAt))
	if m.DeliverIn != 0 {
		set("Hookstation-Delay", strconv.FormatInt(m.DeliverIn.Milliseconds(), 10))
	}
	if m.Spread != 0 {
		set("Hookstation-Spread", strconv.FormatInt(m.Spread.Milliseconds(), 10))
	}
	set("Hookstation-Expires-At", instant(m.ExpiresAt))
	if m.ProducerSeq != nil {
		set("Hookstation-Producer-Seq", strconv.FormatInt(*m.ProducerSeq, 10))
	}
	for name, value := range m.Headers {
		header["Hookstation-Header-"+name] = []string{value}
	}
	return header
}

// item returns the item of a batch (docs/api.md, "Publish many at once").
func (m Outgoing) item() (map[string]any, error) {
	content, kind, err := m.content()
	if err != nil {
		return nil, err
	}
	item := bodyFields(content)
	item["content_type"] = kind
	item["idempotency_key"] = m.ID
	setText(item, "event_type", m.EventType)
	setText(item, "ordering_key", m.OrderingKey)
	setPointer(item, "priority", m.Priority)
	setText(item, "deliver_at", instant(m.DeliverAt))
	if m.DeliverIn != 0 {
		item["delay_ms"] = m.DeliverIn.Milliseconds()
	}
	if m.Spread != 0 {
		item["spread_ms"] = m.Spread.Milliseconds()
	}
	setText(item, "expires_at", instant(m.ExpiresAt))
	setPointer(item, "producer_seq", m.ProducerSeq)
	if len(m.Headers) > 0 {
		item["headers"] = m.Headers
	}
	return item, nil
}

func bodyFields(content []byte) map[string]any {
	if utf8.Valid(content) {
		return map[string]any{"body": string(content)}
	}
	return map[string]any{"body_base64": base64.StdEncoding.EncodeToString(content)}
}

func setText(into map[string]any, name, value string) {
	if value != "" {
		into[name] = value
	}
}

func setPointer[T any](into map[string]any, name string, value *T) {
	if value != nil {
		into[name] = *value
	}
}

// instant formats a time for the API; it returns "" for the zero time.
func instant(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// newID returns a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
