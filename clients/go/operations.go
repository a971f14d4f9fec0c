package hookstation

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Publish publishes one message. When it returns without an error, the broker has stored it.
func (c *Client) Publish(ctx context.Context, channel string, message Outgoing) (*Message, error) {
	message = message.withID()
	content, kind, err := message.content()
	if err != nil {
		return nil, err
	}
	header := message.header(kind)
	if !isASCII(header) {
		// HTTP servers differ on bytes beyond ASCII in headers. JSON has no such limit.
		results, err := c.PublishBatch(ctx, channel, []Outgoing{message})
		if err != nil {
			return nil, err
		}
		return results[0].Message, results[0].Err
	}
	return sendJSON[*Message](ctx, c, call{
		method: http.MethodPost,
		path:   path("channels", channel, "messages"),
		header: header,
		body:   content,
	})
}

// PublishBatch publishes up to 1,000 messages and 16 MiB in one request. All that are valid are stored
// in one transaction. The results are in the order of messages; one that was refused holds its error.
func (c *Client) PublishBatch(
	ctx context.Context, channel string, messages []Outgoing,
) ([]BatchResult, error) {
	items := make([]map[string]any, len(messages))
	for i, message := range messages {
		item, err := message.withID().item()
		if err != nil {
			return nil, err
		}
		items[i] = item
	}
	call, err := call{
		method: http.MethodPost, path: path("channels", channel, "messages", "batch"),
	}.withJSON(items)
	if err != nil {
		return nil, err
	}
	found, err := sendJSON[struct{ Items []json.RawMessage }](ctx, c, call)
	if err != nil {
		return nil, err
	}
	if len(found.Items) != len(messages) {
		return nil, fmt.Errorf("hookstation: %d results of %d messages", len(found.Items), len(messages))
	}
	results := make([]BatchResult, len(messages))
	for i, item := range found.Items {
		if results[i], err = batchResult(item, c.now()); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func batchResult(item json.RawMessage, now time.Time) (BatchResult, error) {
	var said struct{ Status int }
	if err := unmarshal(item, &said); err != nil {
		return BatchResult{}, err
	}
	if said.Status >= 300 {
		return BatchResult{Err: errorOf(said.Status, nil, item, now)}, nil
	}
	message := &Message{}
	return BatchResult{Message: message}, unmarshal(item, message)
}

// Message returns a message with its deliveries.
func (c *Client) Message(ctx context.Context, id string) (Resource, error) {
	return sendJSON[Resource](ctx, c, get("messages", id))
}

// Body returns the exact bytes of a message's body.
func (c *Client) Body(ctx context.Context, id string) ([]byte, error) {
	return c.send(ctx, get("messages", id, "body"))
}

// MessageFilter chooses messages of a list. Zero fields choose all.
type MessageFilter struct {
	// State is one of docs/states.md.
	State string
	// EventType is a name, or "order.*".
	EventType string
	// ID finds the message that was published with it by this producer.
	ID string
	// From and To are times of acceptance; To is exclusive.
	From, To time.Time
}

// Messages iterates over the messages of a channel, newest first. The error is that of a page which
// cannot be read; the iteration ends with it.
func (c *Client) Messages(
	ctx context.Context, channel string, filter MessageFilter,
) iter.Seq2[Resource, error] {
	list := get("channels", channel, "messages")
	list.query = queryOf(map[string]string{
		"state":           filter.State,
		"event_type":      filter.EventType,
		"idempotency_key": filter.ID,
		"from":            instant(filter.From),
		"to":              instant(filter.To),
	})
	return pages(ctx, c, list)
}

// MoveOptions says what Move changes. Nil fields stay.
type MoveOptions struct {
	// DeliverAt is the new time.
	DeliverAt *time.Time
	// DeliverIn is the same as a duration by the broker's clock; 0 is now.
	DeliverIn *time.Duration
	// Priority is 0 to 9.
	Priority *int
	// Reason goes to the audit log.
	Reason string
	// Version makes it conditional: ErrConflict unless the message still has it.
	Version *int64
}

// Move moves a waiting message to another time or priority. ErrConflict while a delivery of it is in
// flight.
func (c *Client) Move(ctx context.Context, id string, options MoveOptions) (Resource, error) {
	said := map[string]any{}
	if options.DeliverAt != nil {
		said["due_at"] = instant(*options.DeliverAt)
	}
	if options.DeliverIn != nil {
		said["delay_ms"] = options.DeliverIn.Milliseconds()
	}
	setPointer(said, "priority", options.Priority)
	setText(said, "reason", options.Reason)
	call, err := call{method: http.MethodPatch, path: path("messages", id)}.withJSON(said)
	if err != nil {
		return nil, err
	}
	return sendJSON[Resource](ctx, c, call.withVersion(options.Version))
}

// CancelOptions are the options of Cancel.
type CancelOptions struct {
	// Reason goes to the audit log.
	Reason string
	// Version makes it conditional: ErrConflict unless the message still has it.
	Version *int64
}

// Cancel cancels what is still queued of a message. Twice is harmless.
func (c *Client) Cancel(ctx context.Context, id string, options CancelOptions) (Resource, error) {
	call := call{
		method: http.MethodDelete,
		path:   path("messages", id),
		query:  queryOf(map[string]string{"reason": options.Reason}),
	}
	return sendJSON[Resource](ctx, c, call.withVersion(options.Version))
}

// withVersion makes a call conditional.
func (c call) withVersion(version *int64) call {
	if version == nil {
		return c
	}
	if c.header == nil {
		c.header = http.Header{}
	}
	c.header.Set("If-Match", strconv.Quote(strconv.FormatInt(*version, 10)))
	// The repeat of a change that had its effect would meet the version that it made.
	c.once = true
	return c
}

// CreateChannel creates a channel or replaces its settings; safe at each start of a service.
func (c *Client) CreateChannel(
	ctx context.Context, channel string, settings map[string]any,
) (Resource, error) {
	return c.put(ctx, path("channels", channel), settings)
}

// Channel returns a channel.
func (c *Client) Channel(ctx context.Context, channel string) (Resource, error) {
	return sendJSON[Resource](ctx, c, get("channels", channel))
}

// Registration is what Register says of a consumer.
type Registration struct {
	// URL is where the broker delivers to. A consumer without it pulls.
	URL string
	// Events are event types and patterns such as "order.*"; none means every event.
	Events []string
	// Settings are further fields of the API, such as "max_attempts", "retry" and "ordering".
	Settings map[string]any
}

// Register registers a consumer or replaces its settings; safe at each start of a service. The result
// holds the signing secret as "secret" once: when the consumer is new.
func (c *Client) Register(
	ctx context.Context, channel, consumer string, registration Registration,
) (Resource, error) {
	said := map[string]any{"event_types": registration.Events}
	if registration.Events == nil {
		said["event_types"] = []string{}
	}
	if registration.URL == "" {
		said["mode"] = "pull"
	} else {
		said["url"] = registration.URL
	}
	for name, value := range registration.Settings {
		said[name] = value
	}
	return c.put(ctx, path("channels", channel, "consumers", consumer), said)
}

// Consumer returns a consumer.
func (c *Client) Consumer(ctx context.Context, channel, consumer string) (Resource, error) {
	return sendJSON[Resource](ctx, c, get("channels", channel, "consumers", consumer))
}

// DeliveryFilter chooses deliveries of a list. Zero fields choose all.
type DeliveryFilter struct {
	// State is one of docs/states.md; of dead letters it is not used.
	State string
	// Outcome is that of the last attempt.
	Outcome string
	// EventType is a name, or "order.*".
	EventType string
	// From and To are times of creation; To is exclusive.
	From, To time.Time
}

func (f DeliveryFilter) query() url.Values {
	return queryOf(map[string]string{
		"state":      f.State,
		"outcome":    f.Outcome,
		"event_type": f.EventType,
		"from":       instant(f.From),
		"to":         instant(f.To),
	})
}

// Deliveries iterates over the deliveries of a consumer, newest first.
func (c *Client) Deliveries(
	ctx context.Context, channel, consumer string, filter DeliveryFilter,
) iter.Seq2[Resource, error] {
	list := get("channels", channel, "consumers", consumer, "deliveries")
	list.query = filter.query()
	return pages(ctx, c, list)
}

// DeadLetters iterates over the dead deliveries of a consumer, newest first.
func (c *Client) DeadLetters(
	ctx context.Context, channel, consumer string, filter DeliveryFilter,
) iter.Seq2[Resource, error] {
	filter.State = ""
	list := get("channels", channel, "consumers", consumer, "dead-letters")
	list.query = filter.query()
	return pages(ctx, c, list)
}

// ReplayDelivery sends a finished delivery again, now and with all its attempts. The reason goes to
// the audit log. It is repeated only where the first call certainly had no effect.
func (c *Client) ReplayDelivery(ctx context.Context, id, reason string) (Resource, error) {
	said := map[string]any{}
	setText(said, "reason", reason)
	call, err := call{
		method: http.MethodPost, path: path("deliveries", id, "replay"), once: true,
	}.withJSON(said)
	if err != nil {
		return nil, err
	}
	return sendJSON[Resource](ctx, c, call)
}

// Do makes any other call of the API: method, a path behind /api/v1 such as "/replays", and a body
// that is sent as JSON, nil for none. POST is repeated only where the first call certainly had no
// effect. The result is nil where the broker answers without a body.
func (c *Client) Do(ctx context.Context, method, apiPath string, body any) (Resource, error) {
	call := call{method: method, path: "/api/v1" + apiPath, once: method == http.MethodPost}
	if body != nil {
		var err error
		if call, err = call.withJSON(body); err != nil {
			return nil, err
		}
	}
	content, err := c.send(ctx, call)
	if err != nil || len(content) == 0 {
		return nil, err
	}
	var result Resource
	return result, unmarshal(content, &result)
}

func (c *Client) put(ctx context.Context, path string, said map[string]any) (Resource, error) {
	if said == nil {
		said = map[string]any{}
	}
	call, err := call{method: http.MethodPut, path: path}.withJSON(said)
	if err != nil {
		return nil, err
	}
	return sendJSON[Resource](ctx, c, call)
}

func queryOf(values map[string]string) url.Values {
	query := url.Values{}
	for name, value := range values {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

func isASCII(header http.Header) bool {
	for _, values := range header {
		for _, value := range values {
			for i := range len(value) {
				if value[i] >= 0x80 {
					return false
				}
			}
		}
	}
	return true
}
