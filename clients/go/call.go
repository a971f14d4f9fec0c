package hookstation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Resource is an object in a response of the API; docs/api.md describes its fields. Numbers are
// [json.Number], so that they keep all digits.
type Resource map[string]any

// String returns a string field, or "".
func (r Resource) String(field string) string {
	text, _ := r[field].(string)
	return text
}

// Int returns an integer field, or 0.
func (r Resource) Int(field string) int64 {
	number, _ := r[field].(json.Number)
	value, _ := number.Int64()
	return value
}

// Decode stores the object in a value of any type, by the rules of encoding/json.
func (r Resource) Decode(into any) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

// call is one request of the API.
type call struct {
	method string
	path   string
	query  url.Values
	header http.Header
	body   []byte
	// Whether the call is not idempotent.
	once bool
	// How long the broker may delay the response (long poll).
	wait time.Duration
}

func get(parts ...string) call { return call{method: http.MethodGet, path: path(parts...)} }

// withJSON gives the call a JSON body.
func (c call) withJSON(value any) (call, error) {
	content, err := marshal(value)
	if err != nil {
		return c, err
	}
	c.body = content
	c.header = http.Header{"Content-Type": {"application/json"}}
	return c, nil
}

func path(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = url.PathEscape(part)
	}
	return "/api/v1/" + strings.Join(escaped, "/")
}

// marshal encodes JSON without escaping <, > and &.
func marshal(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}

// send makes the call, retries it if permitted, and returns the body of the response.
//
// Every retry sends the same bytes and headers, including the idempotency key.
func (c *Client) send(ctx context.Context, call call) ([]byte, error) {
	for retry := 0; ; retry++ {
		content, failure := c.round(ctx, call)
		if failure == nil {
			return content, nil
		}
		wait, repeat := waitBeforeRetry(call, failure, retry, c.retries)
		if !repeat || ctx.Err() != nil {
			return nil, failure
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, fmt.Errorf("%w: %w", err, failure)
		}
	}
}

// round tries the addresses, beginning with the one that responded last, until one is available.
func (c *Client) round(ctx context.Context, call call) ([]byte, *Error) {
	var content []byte
	var failure *Error
	for range c.urls {
		index := c.current.Load()
		content, failure = c.once(ctx, c.urls[index], call)
		if failure == nil || !isAway(failure) {
			return content, failure
		}
		// If several goroutines see the same failure, only one moves to the next address.
		c.current.CompareAndSwap(index, (index+1)%int64(len(c.urls)))
		if !mayRepeat(call, failure) || ctx.Err() != nil || c.retries == 0 {
			return nil, failure
		}
	}
	return nil, failure
}

func (c *Client) once(ctx context.Context, base string, call call) ([]byte, *Error) {
	var isSent atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { isSent.Store(true) }}
	limited, cancel := context.WithTimeout(ctx, c.timeout+call.wait)
	defer cancel()
	request, err := c.request(httptrace.WithClientTrace(limited, trace), base, call)
	if err != nil {
		return nil, connectionFailed(call, err, false)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, connectionFailed(call, err, isSent.Load())
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, connectionFailed(call, err, true)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, errorOf(response.StatusCode, response.Header, content, c.now())
	}
	return content, nil
}

func (c *Client) request(ctx context.Context, base string, call call) (*http.Request, error) {
	address := base + call.path
	if len(call.query) > 0 {
		address += "?" + call.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, call.method, address, bytes.NewReader(call.body))
	if err != nil {
		return nil, err
	}
	for name, values := range call.header {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	request.Header.Set("User-Agent", "hookstation-go/"+Version)
	return request, nil
}

func connectionFailed(call call, cause error, isSent bool) *Error {
	code := "not_sent"
	if isSent {
		code = "no_response"
	}
	var failed *url.Error
	if errors.As(cause, &failed) {
		cause = failed.Err
	}
	return &Error{
		Code:   code,
		Detail: fmt.Sprintf("%s %s: %v", call.method, call.path, cause),
		cause:  cause,
	}
}

// waitBeforeRetry returns how long to wait before retry number retry (from 0), and whether to
// retry.
//
// The waits double from firstBackoff to maxBackoff. Half of each is random, so that clients that
// failed at the same time do not retry at the same time.
func waitBeforeRetry(call call, failure *Error, retry, retries int) (time.Duration, bool) {
	if retry >= retries || !mayRepeat(call, failure) || failure.RetryAfter > maxRetryAfter {
		return 0, false
	}
	half := min(maxBackoff, firstBackoff<<min(retry, 10)) / 2
	return max(failure.RetryAfter, half) + rand.N(half), true
}

// mayRepeat reports whether the broker did nothing, or the call is idempotent.
func mayRepeat(call call, failure *Error) bool {
	switch failure.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		// Without a code the response comes from a proxy, which may have forwarded the request before.
		return failure.Code != "" || !call.once
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusGatewayTimeout:
		return !call.once
	case 0:
		return failure.Code == "not_sent" || !call.once
	}
	return false
}

// isAway reports whether the address is unavailable, so that another one should be tried: no
// connection, no response, or a 502, 503 or 504.
func isAway(failure *Error) bool {
	return slices.Contains([]int{0, 502, 503, 504}, failure.Status)
}

func sendJSON[T any](ctx context.Context, c *Client, call call) (T, error) {
	var result T
	content, err := c.send(ctx, call)
	if err != nil {
		return result, err
	}
	err = unmarshal(content, &result)
	return result, err
}

func unmarshal(content []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("hookstation: cannot parse the response: %w", err)
	}
	return nil
}

// pages iterates over a list of the API, and reads each page when it is needed. After an error the
// iteration ends.
func pages(ctx context.Context, c *Client, list call) iter.Seq2[Resource, error] {
	return func(yield func(Resource, error) bool) {
		query := url.Values{}
		for name, values := range list.query {
			query[name] = values
		}
		page := list
		page.query = query
		for {
			found, err := sendJSON[struct {
				Items []Resource
				Next  *string
			}](ctx, c, page)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, item := range found.Items {
				if !yield(item, nil) {
					return
				}
			}
			if found.Next == nil {
				return
			}
			query.Set("cursor", *found.Next)
		}
	}
}
