// Package driver plays conformance scenarios with the client: one JSON object per line in, one per
// line out. The protocol is in docs/clients/README.md.
package driver

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"iter"
	"log"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	hookstation "hookstation.dev/client"
)

// request has the members of all operations.
type request struct {
	Op         string            `json:"op"`
	Channel    string            `json:"channel"`
	Consumer   string            `json:"consumer"`
	Schedule   string            `json:"schedule"`
	Settings   map[string]any    `json:"settings"`
	ID         string            `json:"id"`
	Messages   []outgoing        `json:"messages"`
	Max        int               `json:"max"`
	Wait       float64           `json:"wait"`
	WorkerID   string            `json:"worker_id"`
	Resume     bool              `json:"resume"`
	Lease      json.RawMessage   `json:"lease"`
	Delay      *float64          `json:"delay"`
	Error      string            `json:"error"`
	Seconds    float64           `json:"seconds"`
	Secret     string            `json:"secret"`
	Headers    map[string]string `json:"headers"`
	BodyBase64 []byte            `json:"body_base64"`
	Body       *string           `json:"body"`

	ContentType string   `json:"content_type"`
	EventType   string   `json:"event_type"`
	OrderingKey string   `json:"ordering_key"`
	Priority    *int     `json:"priority"`
	DeliverIn   *float64 `json:"deliver_in"`
}

type outgoing struct {
	Body     string `json:"body"`
	ID       string `json:"id"`
	Priority *int   `json:"priority"`
}

// object is a member of a request's or answer's JSON.
type object = map[string]any

var (
	client *hookstation.Client
	ctx    = context.Background()
)

var operations = map[string]func(request) (any, error){
	"now": func(request) (any, error) { return float64(now().UnixNano()) / 1e9, nil },
	"create_channel": func(r request) (any, error) {
		return client.CreateChannel(ctx, r.Channel, r.Settings)
	},
	"register": func(r request) (any, error) {
		return client.Register(ctx, r.Channel, r.Consumer, hookstation.Registration{Settings: r.Settings})
	},
	"publish":       publish,
	"publish_batch": publishBatch,
	"list_messages": func(r request) (any, error) {
		return ids(client.Messages(ctx, r.Channel, hookstation.MessageFilter{}), "id")
	},
	"message": func(r request) (any, error) { return client.Message(ctx, r.ID) },
	"move": func(r request) (any, error) {
		options := hookstation.MoveOptions{DeliverIn: duration(r.DeliverIn), Priority: r.Priority}
		return client.Move(ctx, r.ID, options)
	},
	"cancel": func(r request) (any, error) {
		return client.Cancel(ctx, r.ID, hookstation.CancelOptions{})
	},
	"receive": func(r request) (any, error) { return received(receive(r)) },
	"ack": func(r request) (any, error) {
		return settled(client.Ack(ctx, r.lease()))
	},
	"nack": func(r request) (any, error) {
		options := hookstation.NackOptions{Delay: duration(r.Delay), Error: r.Error}
		return settled(client.Nack(ctx, options, r.lease()))
	},
	"extend": func(r request) (any, error) {
		return settled(client.Extend(ctx, *duration(&r.Seconds), r.lease()))
	},
	"release": func(r request) (any, error) {
		var delay time.Duration
		if r.Delay != nil {
			delay = *duration(r.Delay)
		}
		return settled(client.Release(ctx, delay, r.lease()))
	},
	"dead_letters": func(r request) (any, error) {
		found := client.DeadLetters(ctx, r.Channel, r.Consumer, hookstation.DeliveryFilter{})
		return ids(found, "message_id")
	},
	"replay_delivery": func(r request) (any, error) { return client.ReplayDelivery(ctx, r.ID, "") },
	"put_schedule": func(r request) (any, error) {
		schedule := hookstation.Schedule{Settings: r.Settings}
		return client.Schedules(r.Channel).Put(ctx, r.Schedule, schedule)
	},
	"get_schedule": func(r request) (any, error) {
		return client.Schedules(r.Channel).Get(ctx, r.Schedule)
	},
	"delete_schedule": func(r request) (any, error) {
		return object{}, client.Schedules(r.Channel).Delete(ctx, r.Schedule)
	},
	"verify": func(r request) (any, error) {
		header := http.Header{}
		for name, value := range r.Headers {
			header.Set(name, value)
		}
		id, err := client.Verify(header, r.BodyBase64, r.Secret)
		return object{"id": id}, err
	},
}

func publish(r request) (any, error) {
	message := hookstation.Outgoing{
		Body:        r.BodyBase64,
		EventType:   r.EventType,
		ID:          r.ID,
		OrderingKey: r.OrderingKey,
		Priority:    r.Priority,
		Headers:     r.Headers,
		ContentType: r.ContentType,
	}
	if r.Body != nil {
		message.Body = *r.Body
	}
	if message.ContentType == "" {
		message.ContentType = "application/json"
	}
	if r.DeliverIn != nil {
		message.DeliverIn = *duration(r.DeliverIn)
	}
	sent, err := client.Publish(ctx, r.Channel, message)
	if err != nil {
		return nil, err
	}
	return object{"id": sent.ID, "duplicate": sent.Duplicate}, nil
}

func publishBatch(r request) (any, error) {
	messages := make([]hookstation.Outgoing, len(r.Messages))
	for i, one := range r.Messages {
		messages[i] = hookstation.Outgoing{Body: one.Body, ID: one.ID, Priority: one.Priority}
	}
	sent, err := client.PublishBatch(ctx, r.Channel, messages)
	results := make([]object, len(sent))
	for i, result := range sent {
		var refused *hookstation.Error
		if errors.As(result.Err, &refused) {
			results[i] = object{"error": refused.Code}
		} else {
			results[i] = object{"id": result.Message.ID, "duplicate": result.Message.Duplicate}
		}
	}
	return object{"results": results}, err
}

func receive(r request) ([]*hookstation.Delivery, error) {
	lease, err := r.leaseTime()
	if err != nil {
		return nil, err
	}
	options := hookstation.ReceiveOptions{
		Max: r.Max, Wait: *duration(&r.Wait), Lease: lease, WorkerID: r.WorkerID, Resume: r.Resume,
	}
	return client.ReceiveBatch(ctx, r.Channel, r.Consumer, options)
}

func received(found []*hookstation.Delivery, err error) (any, error) {
	messages := make([]object, len(found))
	for i, one := range found {
		messages[i] = object{
			"id":           one.ID,
			"lease":        one.Lease,
			"attempt":      one.Attempt,
			"event_type":   one.EventType,
			"ordering_key": one.OrderingKey,
			"priority":     one.Priority,
			"headers":      one.Headers,
			"content_type": one.ContentType,
			"body_base64":  base64.StdEncoding.EncodeToString(one.Body),
		}
	}
	return object{"messages": messages}, err
}

// leaseTime is the lease of receive, a number of seconds; 0 is the default.
func (r request) leaseTime() (time.Duration, error) {
	if r.Lease == nil {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(string(r.Lease), 64)
	return *duration(&seconds), err
}

// lease is a string in all operations except receive, where it is a number of seconds.
func (r request) lease() string {
	var lease string
	_ = json.Unmarshal(r.Lease, &lease) // anything else is an unknown lease
	return lease
}

func duration(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	return hookstation.Ptr(time.Duration(*seconds * float64(time.Second)))
}

func ids(found iter.Seq2[hookstation.Resource, error], field string) (any, error) {
	ids := []string{}
	for item, err := range found {
		if err != nil {
			return nil, err
		}
		ids = append(ids, item.String(field))
	}
	return object{"ids": ids}, nil
}

func settled(result hookstation.Settled, err error) (any, error) {
	for _, reason := range result.Failed {
		return nil, &hookstation.Error{Code: reason, Status: 200, Detail: "The lease is lost."}
	}
	return object{}, err
}

func answer(name string, r request) object {
	run, isKnown := operations[r.Op]
	if r.Op == "hello" {
		names := []string{}
		for name := range operations {
			names = append(names, name)
		}
		slices.Sort(names)
		return object{"ok": object{"client": name, "ops": names}}
	}
	if !isKnown {
		return object{"error": object{"code": "unknown_operation", "status": 0, "detail": r.Op}}
	}
	result, err := run(r)
	var refused *hookstation.Error
	switch {
	case err == nil:
		return object{"ok": result}
	case errors.As(err, &refused):
		fields := []string{}
		for field := range refused.Fields {
			fields = append(fields, field)
		}
		slices.Sort(fields)
		return object{"error": object{
			"code": refused.Code, "status": refused.Status, "detail": refused.Detail, "fields": fields,
		}}
	case errors.Is(err, hookstation.ErrSignature):
		return object{"error": object{"code": "bad_signature", "status": 0, "detail": err.Error()}}
	}
	return object{"error": object{"code": "driver", "status": 0, "detail": err.Error()}}
}

// now is the clock that the scenario changes with libfaketime's variable. The library cannot change
// the clock of Go programs, which call the kernel directly, so the client uses this function.
func now() time.Time {
	ahead, _ := strconv.Atoi(os.Getenv("FAKETIME"))
	return time.Now().Add(time.Duration(ahead) * time.Second)
}

// Main plays scenarios until the standard input ends. With a transport it receives and settles over
// streams.
func Main(name string, transport hookstation.StreamTransport) {
	var err error
	if client, err = hookstation.New(hookstation.WithClock(now)); err != nil {
		log.Fatal(err)
	}
	if transport != nil {
		maps.Copy(operations, (&streams{transport: transport}).operations())
	}
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(answer(name, r)); err != nil {
			log.Fatal(err)
		}
	}
}
