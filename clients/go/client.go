package hookstation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	defaultTimeout = 30 * time.Second
	connectTimeout = 10 * time.Second
	defaultRetries = 6
	maxIdle        = 100

	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 20 * time.Second
	// Longest Retry-After that the client waits for; if it is longer, it returns the error at once.
	maxRetryAfter = 60 * time.Second
)

// Client calls the broker's REST API. It is safe for concurrent use.
type Client struct {
	urls    []string
	key     string
	timeout time.Duration
	retries int
	http    *http.Client
	now     func() time.Time
	// Index in urls of the address that responded last.
	current atomic.Int64
}

// Option changes a setting of [New].
type Option func(*Client)

// WithURL sets the broker's address in place of HOOKSTATION_URL. Several addresses of one broker,
// as arguments or separated by commas, are tried in turn while one is unavailable.
func WithURL(urls ...string) Option {
	return func(c *Client) { c.urls = splitURLs(strings.Join(urls, ",")) }
}

// WithKey sets the API key in place of HOOKSTATION_KEY.
func WithKey(key string) Option { return func(c *Client) { c.key = key } }

// WithTimeout sets the timeout of one try of a request; the default is 30 seconds. A long poll adds
// its own wait.
func WithTimeout(timeout time.Duration) Option { return func(c *Client) { c.timeout = timeout } }

// WithRetries sets the maximum number of retries of a request; the default is 6, and 0 disables
// retries. With several addresses, each retry tries all of them.
func WithRetries(retries int) Option { return func(c *Client) { c.retries = retries } }

// WithHTTPClient sets the http.Client, for example for certificates or proxies.
func WithHTTPClient(client *http.Client) Option { return func(c *Client) { c.http = client } }

// WithClock replaces [time.Now], for tests.
func WithClock(now func() time.Time) Option { return func(c *Client) { c.now = now } }

// New returns a client. Address and key come from HOOKSTATION_URL and HOOKSTATION_KEY unless
// options set them. It returns an error if one of them is missing or the address is not an http
// URL. It does not call the broker.
func New(options ...Option) (*Client, error) {
	client := &Client{
		urls:    splitURLs(os.Getenv("HOOKSTATION_URL")),
		key:     os.Getenv("HOOKSTATION_KEY"),
		timeout: defaultTimeout,
		retries: defaultRetries,
		now:     time.Now,
	}
	for _, option := range options {
		option(client)
	}
	if len(client.urls) == 0 {
		return nil, errors.New("hookstation: pass WithURL, or set HOOKSTATION_URL")
	}
	for _, address := range client.urls {
		parsed, err := url.Parse(address)
		if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
			return nil, fmt.Errorf("hookstation: %q is not an http or https address", address)
		}
	}
	if client.key == "" {
		return nil, errors.New("hookstation: pass WithKey, or set HOOKSTATION_KEY")
	}
	if client.http == nil {
		client.http = newHTTPClient()
	}
	return client, nil
}

// Close closes idle connections. The client may be used again.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Verify checks a webhook by the client's clock, like the function [Verify].
func (c *Client) Verify(header http.Header, body []byte, secrets ...string) (string, error) {
	return Verifier{Secrets: secrets, Now: c.now}.Verify(header, body)
}

func newHTTPClient() *http.Client {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialer.DialContext
	transport.MaxIdleConns = maxIdle
	transport.MaxIdleConnsPerHost = maxIdle
	return &http.Client{
		Transport: transport,
		// A redirect would send the key to an address that is not configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func splitURLs(text string) []string {
	var urls []string
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimRight(strings.TrimSpace(part), "/"); part != "" {
			urls = append(urls, part)
		}
	}
	return urls
}

// Ptr returns a pointer to a value, for optional fields.
func Ptr[T any](value T) *T { return &value }

// seconds returns whole seconds, rounded up: a message is never delivered early.
func seconds(duration time.Duration) int64 { return int64(math.Ceil(duration.Seconds())) }

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
