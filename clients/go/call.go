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

// Resource is an object of the API as the broker answers it; docs/api.md has its fields. Numbers are
// [json.Number], so that none loses a digit.
type Resource map[string]any

// String returns a field that is text, or "".
func (r Resource) String(field string) string {
	text, _ := r[field].(string)
	return text
}

// Int returns a field that is a whole number, or 0.
func (r Resource) Int(field string) int64 {
	number, _ := r[field].(json.Number)
	value, _ := number.Int64()
	return value
}

// Decode stores the object in a value of the caller's own type, by the rules of encoding/json.
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
	// Sending it twice has an effect that sending it once does not have.
	once bool
	// How long the broker may hold the response back.
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

// marshal encodes JSON with <, > and & as they are.
func marshal(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}

// send makes the call, repeats it as retry rules allow, and returns the body of the response.
//
// Every repeat sends the same bytes and headers, the idempotency key among them.
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

// round tries the addresses, from the one that answered last, until one is not away.
func (c *Client) round(ctx context.Context, call call) ([]byte, *Error) {
	var content []byte
	var failure *Error
	for range c.urls {
		index := c.current.Load()
		content, failure = c.once(ctx, c.urls[index], call)
		if failure == nil || !isAway(failure) {
			return content, failure
		}
		// Of several goroutines that meet the same failure, one moves to the next address.
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
		kinds:  []error{ErrConnection},
		cause:  cause,
	}
}

// waitBeforeRetry returns how long to wait before retry number retry (from 0), and whether to repeat.
//
// The waits double from firstBackoff to maxBackoff, with up to half of each by chance, so that clients
// that failed together do not return together.
func waitBeforeRetry(call call, failure *Error, retry, retries int) (time.Duration, bool) {
	if retry >= retries || !mayRepeat(call, failure) || failure.RetryAfter > maxRetryAfter {
		return 0, false
	}
	half := min(maxBackoff, firstBackoff<<min(retry, 10)) / 2
	return max(failure.RetryAfter, half) + rand.N(half), true
}

// mayRepeat reports whether the broker did nothing, or doing it twice is harmless.
func mayRepeat(call call, failure *Error) bool {
	switch failure.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		// A proxy answers so without a code, and may have passed the request on before.
		return failure.Code != "" || !call.once
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusGatewayTimeout:
		return !call.once
	case 0:
		return failure.Code == "not_sent" || !call.once
	}
	return false
}

// isAway reports whether another address may do better: no connection, no response, or a proxy or
// broker that cannot serve.
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
		return fmt.Errorf("hookstation: the response cannot be read: %w", err)
	}
	return nil
}

// pages iterates over a list of the API, and reads a page when the one before it is used up. After an
// error the iteration ends.
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
