package hookstation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"
	"unicode/utf8"
)

const (
	maxLeases       = 100
	maxErrorLength  = 300
	defaultWait     = 20 * time.Second
	giveBackTimeout = 5 * time.Second
)

// ReceiveOptions are the options of Receive and ReceiveBatch.
type ReceiveOptions struct {
	// Max is the maximum number of messages of one call: 1 to 100, by default 10.
	Max int
	// Wait is how long the broker waits for a message: up to 20 seconds.
	Wait time.Duration
	// Lease is the time until another worker may receive the messages, in whole seconds; by default 30
	// seconds.
	Lease time.Duration
	// WorkerID identifies the caller in the console, and for Resume and Sticky.
	WorkerID string
	// Resume first receives the messages that this WorkerID has already leased, after a crash.
	Resume bool
	// Sticky sends messages of an ordering key to the same WorkerID.
	Sticky bool
	// AutoAck acknowledges the messages when the broker returns them: delivery at most once, without
	// leases.
	AutoAck bool
}

// Delivery is a message that a pull consumer received. Ack, Nack, Extend and Release return
// ErrLeaseLost if the lease has ended, so that another worker may have received the message.
type Delivery struct {
	// ID is the id of the message, the same each time it is received. Deduplicate by it.
	ID         string
	DeliveryID string
	// Lease identifies the lease in Client.Ack and the other calls. Empty with AutoAck.
	Lease          string
	LeaseExpiresAt time.Time
	Attempt        int
	MaxAttempts    int
	EventType      string
	Priority       int
	OrderingKey    string
	Replay         bool
	AcceptedAt     time.Time
	ContentType    string
	Headers        map[string]string
	Body           []byte
	// BodyURL is set by [Stream.Receive] in place of Body if the body is too large for a stream:
	// [Client.Body] returns it. A [Worker] has done that.
	BodyURL string

	client *Client
}

// JSON parses the body as JSON into a value.
func (d *Delivery) JSON(into any) error { return json.Unmarshal(d.Body, into) }

// Ack acknowledges the message: it is delivered.
func (d *Delivery) Ack(ctx context.Context) error {
	settled, err := d.client.Ack(ctx, d.Lease)
	return d.check(settled, err)
}

// NackOptions describe a failed attempt.
type NackOptions struct {
	// Delay is the time until the retry, in whole seconds; nil means the consumer's retry policy.
	Delay *time.Duration
	// Error is for people; its first 300 characters are kept.
	Error string
	// Final makes it a dead letter at once.
	Final bool
}

// Nack reports a failed attempt.
func (d *Delivery) Nack(ctx context.Context, options NackOptions) error {
	settled, err := d.client.Nack(ctx, options, d.Lease)
	return d.check(settled, err)
}

// Extend makes the lease end after this time from now, in whole seconds.
func (d *Delivery) Extend(ctx context.Context, lease time.Duration) error {
	settled, err := d.client.Extend(ctx, lease, d.Lease)
	return d.check(settled, err)
}

// Release returns the message without counting a failure, due after the delay, in whole seconds.
func (d *Delivery) Release(ctx context.Context, delay time.Duration) error {
	settled, err := d.client.Release(ctx, delay, d.Lease)
	return d.check(settled, err)
}

func (d *Delivery) check(settled Settled, err error) error {
	if err != nil {
		return err
	}
	if reason, isLost := settled.Failed[d.Lease]; isLost {
		return leaseLost(d.Lease, reason)
	}
	return nil
}

// received is a message in the broker's response.
type received struct {
	ID             string            `json:"id"`
	DeliveryID     string            `json:"delivery_id"`
	Lease          string            `json:"lease"`
	LeaseExpiresAt time.Time         `json:"lease_expires_at"`
	Attempt        int               `json:"attempt"`
	MaxAttempts    int               `json:"max_attempts"`
	EventType      string            `json:"event_type"`
	Priority       int               `json:"priority"`
	OrderingKey    string            `json:"ordering_key"`
	Replay         bool              `json:"replay"`
	AcceptedAt     time.Time         `json:"accepted_at"`
	ContentType    string            `json:"content_type"`
	Headers        map[string]string `json:"headers"`
	Body           string            `json:"body"`
	BodyBase64     []byte            `json:"body_base64"`
	BodyURL        string            `json:"body_url"`
}

// ReceiveBatch receives up to options.Max messages of a pull consumer, in one call.
func (c *Client) ReceiveBatch(
	ctx context.Context, channel, consumer string, options ReceiveOptions,
) ([]*Delivery, error) {
	said := map[string]any{"wait_s": options.Wait.Seconds()}
	if options.Max != 0 {
		said["max"] = options.Max
	}
	if options.Lease != 0 {
		said["lease_s"] = seconds(options.Lease)
	}
	setText(said, "worker_id", options.WorkerID)
	if options.Resume {
		said["resume"] = true
	}
	if options.Sticky {
		said["keys"] = "sticky"
	}
	if options.AutoAck {
		said["auto_ack"] = true
	}
	call, err := call{
		method: http.MethodPost,
		path:   path("channels", channel, "consumers", consumer, "receive"),
		wait:   options.Wait,
	}.withJSON(said)
	if err != nil {
		return nil, err
	}
	found, err := sendJSON[struct{ Messages []received }](ctx, c, call)
	if err != nil {
		return nil, err
	}
	deliveries := make([]*Delivery, len(found.Messages))
	for i, message := range found.Messages {
		if deliveries[i], err = c.delivery(ctx, message); err != nil {
			return nil, errors.Join(err, c.giveBack(ctx, found.Messages))
		}
	}
	return deliveries, nil
}

// giveBack releases messages that the caller does not get, even if ctx has ended.
func (c *Client) giveBack(ctx context.Context, messages []received) error {
	leases := make([]string, 0, len(messages))
	for _, message := range messages {
		if message.Lease != "" {
			leases = append(leases, message.Lease)
		}
	}
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	_, err := c.Release(ctx, 0, leases...)
	return err
}

func (c *Client) delivery(ctx context.Context, message received) (*Delivery, error) {
	body := message.BodyBase64
	if message.BodyURL != "" {
		// The body is too large for the response.
		fetched, err := c.Body(ctx, message.ID)
		if err != nil {
			return nil, err
		}
		body = fetched
	} else if body == nil {
		body = []byte(message.Body)
	}
	headers := message.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	return &Delivery{
		ID:             message.ID,
		DeliveryID:     message.DeliveryID,
		Lease:          message.Lease,
		LeaseExpiresAt: message.LeaseExpiresAt,
		Attempt:        message.Attempt,
		MaxAttempts:    message.MaxAttempts,
		EventType:      message.EventType,
		Priority:       message.Priority,
		OrderingKey:    message.OrderingKey,
		Replay:         message.Replay,
		AcceptedAt:     message.AcceptedAt,
		ContentType:    message.ContentType,
		Headers:        headers,
		Body:           body,
		client:         c,
	}, nil
}

// Receive iterates over the messages of a pull consumer until the context ends. Each call waits for
// options.Wait, by default 20 seconds. Settle each message before you take the next one. After an
// error the iteration ends.
func (c *Client) Receive(
	ctx context.Context, channel, consumer string, options ReceiveOptions,
) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		if options.Wait == 0 {
			options.Wait = defaultWait
		}
		options := options
		for ctx.Err() == nil {
			batch, err := c.ReceiveBatch(ctx, channel, consumer, options)
			if err != nil {
				if ctx.Err() == nil {
					yield(nil, err)
				}
				return
			}
			for _, delivery := range batch {
				if !yield(delivery, nil) {
					return
				}
			}
			options.Resume = false
		}
	}
}

// Ack acknowledges up to 100 messages by their leases.
func (c *Client) Ack(ctx context.Context, leases ...string) (Settled, error) {
	return c.settle(ctx, "ack", leases, map[string]any{})
}

// Nack reports failed attempts of up to 100 messages.
func (c *Client) Nack(
	ctx context.Context, options NackOptions, leases ...string,
) (Settled, error) {
	said := map[string]any{}
	if options.Delay != nil {
		said["delay_s"] = seconds(*options.Delay)
	}
	setText(said, "error", truncate(options.Error, maxErrorLength))
	if options.Final {
		said["final"] = true
	}
	return c.settle(ctx, "nack", leases, said)
}

// Extend makes up to 100 leases end after this time from now, in whole seconds.
func (c *Client) Extend(
	ctx context.Context, lease time.Duration, leases ...string,
) (Settled, error) {
	return c.settle(ctx, "extend", leases, map[string]any{"lease_s": seconds(lease)})
}

// Release returns up to 100 messages without counting a failure, due after the delay, in whole
// seconds.
func (c *Client) Release(
	ctx context.Context, delay time.Duration, leases ...string,
) (Settled, error) {
	said := map[string]any{}
	if delay != 0 {
		said["delay_s"] = seconds(delay)
	}
	return c.settle(ctx, "release", leases, said)
}

func (c *Client) settle(
	ctx context.Context, verb string, leases []string, said map[string]any,
) (Settled, error) {
	if len(leases) > maxLeases {
		return Settled{}, fmt.Errorf(
			"hookstation: %d leases in one call; the limit is %d", len(leases), maxLeases,
		)
	}
	said["leases"] = leases
	call, err := call{method: http.MethodPost, path: path("leases", verb)}.withJSON(said)
	if err != nil {
		return Settled{}, err
	}
	return sendJSON[Settled](ctx, c, call)
}

// settleAs calls the method for the settlement's action.
func (c *Client) settleAs(ctx context.Context, settlement Settlement) (Settled, error) {
	leases := settlement.Leases
	switch settlement.Action {
	case ActionAck:
		return c.Ack(ctx, leases...)
	case ActionNack:
		options := NackOptions{
			Delay: settlement.Delay, Error: settlement.Error, Final: settlement.Final,
		}
		return c.Nack(ctx, options, leases...)
	case ActionRelease:
		return c.Release(ctx, *orDefault(settlement.Delay, new(time.Duration)), leases...)
	case ActionExtend:
		return c.Extend(ctx, settlement.Lease, leases...)
	}
	return Settled{}, fmt.Errorf("hookstation: no action %q", settlement.Action)
}

func truncate(text string, length int) string {
	if utf8.RuneCountInString(text) <= length {
		return text
	}
	return string([]rune(text)[:length])
}
