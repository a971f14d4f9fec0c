package hookstation

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// Schedules are the schedules of one channel.
type Schedules struct {
	client  *Client
	channel string
}

// Schedule describes a schedule for Put. Cron or Every sets its times.
type Schedule struct {
	// Cron is an expression of five fields, such as "0 9 * * 1-5".
	Cron string
	// Every is the time between two messages.
	Every time.Duration
	// Body is the body of each message: a []byte or a string as it is, anything else as JSON.
	Body any
	// Settings are other fields of the API (docs/api.md, "Schedules"), such as "event_type".
	Settings map[string]any
}

// Schedules returns the schedules of a channel.
func (c *Client) Schedules(channel string) *Schedules { return &Schedules{c, channel} }

// Put creates or replaces a schedule. It is idempotent.
func (s *Schedules) Put(ctx context.Context, name string, schedule Schedule) (Resource, error) {
	said := map[string]any{}
	for field, value := range schedule.Settings {
		said[field] = value
	}
	setText(said, "cron", schedule.Cron)
	if schedule.Every != 0 {
		said["every_ms"] = schedule.Every.Milliseconds()
	}
	if schedule.Body != nil {
		content, kind, err := encodeBody(schedule.Body)
		if err != nil {
			return nil, err
		}
		for field, value := range bodyFields(content) {
			said[field] = value
		}
		if said["content_type"] == nil {
			said["content_type"] = kind
		}
	}
	return s.client.put(ctx, s.path(name), said)
}

// Get returns a schedule, with its next occurrences and the results of the last ones.
func (s *Schedules) Get(ctx context.Context, name string) (Resource, error) {
	return sendJSON[Resource](ctx, s.client, call{method: http.MethodGet, path: s.path(name)})
}

// List iterates over the schedules of the channel, newest first, without their bodies.
func (s *Schedules) List(ctx context.Context) iter.Seq2[Resource, error] {
	return pages(ctx, s.client, call{method: http.MethodGet, path: s.path()})
}

// Delete deletes a schedule; its messages are kept.
func (s *Schedules) Delete(ctx context.Context, name string) error {
	_, err := s.client.send(ctx, call{method: http.MethodDelete, path: s.path(name)})
	return err
}

// Pause stops a schedule until Resume.
func (s *Schedules) Pause(ctx context.Context, name string) (Resource, error) {
	call := call{method: http.MethodPost, path: s.path(name, "pause")}
	return sendJSON[Resource](ctx, s.client, call)
}

// Resume starts a paused schedule; occurrences during the pause are not published.
func (s *Schedules) Resume(ctx context.Context, name string) (Resource, error) {
	call := call{method: http.MethodPost, path: s.path(name, "resume")}
	return sendJSON[Resource](ctx, s.client, call)
}

func (s *Schedules) path(parts ...string) string {
	return path(append([]string{"channels", s.channel, "schedules"}, parts...)...)
}
