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
		// HTTP servers treat non-ASCII bytes in headers differently. JSON has no such problem.
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

// PublishBatch publishes up to 1,000 messages and 16 MiB in one request. The broker stores all
// valid messages in one transaction. The results are in the order of messages; the result for a
// refused message has its error.
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

// MessageFilter selects messages of a list. Zero fields select all.
type MessageFilter struct {
	// State is a state from docs/states.md.
	State string
	// EventType is a name, or "order.*".
	EventType string
	// ID finds the message that this producer published with this idempotency key.
	ID string
	// From and To are times of acceptance; To is exclusive.
	From, To time.Time
}

// Messages iterates over the messages of a channel, newest first. If a page cannot be read, the
// iteration ends with the error.
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

// MoveOptions are the changes that Move makes. Nil fields do not change.
type MoveOptions struct {
	// DeliverAt is the new time.
	DeliverAt *time.Time
	// DeliverIn is the delay until then, by the broker's clock; 0 is now.
	DeliverIn *time.Duration
	// Priority is 0 to 9.
	Priority *int
	// Reason goes to the audit log.
	Reason string
	// Version makes the call conditional: ErrConflict if the message has another version.
	Version *int64
}

// Move changes the due time or priority of a waiting message. It returns ErrConflict while a
// delivery of the message is in flight.
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
	// Version makes the call conditional: ErrConflict if the message has another version.
	Version *int64
}

// Cancel cancels the queued deliveries of a message. It is idempotent.
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
	// If the change took effect, a retry would conflict with the new version.
	c.once = true
	return c
}

// CreateChannel creates a channel or replaces its settings. It is idempotent: call it when a
// service starts.
func (c *Client) CreateChannel(
	ctx context.Context, channel string, settings map[string]any,
) (Resource, error) {
	return c.put(ctx, path("channels", channel), settings)
}

// Channel returns a channel.
func (c *Client) Channel(ctx context.Context, channel string) (Resource, error) {
	return sendJSON[Resource](ctx, c, get("channels", channel))
}

// Registration describes a consumer for Register.
type Registration struct {
	// URL is the address that the broker delivers to. A consumer without it is a pull consumer.
	URL string
	// Events are event types and patterns such as "order.*"; none means all events.
	Events []string
	// Settings are other fields of the API, such as "max_attempts", "retry" and "ordering".
	Settings map[string]any
}

// Register registers a consumer or replaces its settings. It is idempotent: call it when a service
// starts. Only the result that creates the consumer contains the signing secret, as "secret".
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

// DeliveryFilter selects deliveries of a list. Zero fields select all.
type DeliveryFilter struct {
	// State is a state from docs/states.md; DeadLetters ignores it.
	State string
	// Outcome is the outcome of the last attempt.
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

// DeadLetters iterates over the dead letters of a consumer, newest first.
func (c *Client) DeadLetters(
	ctx context.Context, channel, consumer string, filter DeliveryFilter,
) iter.Seq2[Resource, error] {
	filter.State = ""
	list := get("channels", channel, "consumers", consumer, "dead-letters")
	list.query = filter.query()
	return pages(ctx, c, list)
}

// ReplayDelivery sends a finished delivery again now, with a new budget of attempts. The reason
// goes to the audit log. The client retries the call only if it certainly had no effect.
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

// Do makes any other call of the API. The path is below /api/v1, such as "/replays". The body is
// sent as JSON, nil for none. The client retries a POST only if it certainly had no effect. The
// result is nil if the response has no body.
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
