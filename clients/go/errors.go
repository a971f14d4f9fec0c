package hookstation

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kinds of an [*Error], for [errors.Is].
var (
	// ErrBadRequest: the request is invalid (400, 405, 411, 413, 415, 422).
	ErrBadRequest = errors.New("hookstation: bad request")
	// ErrUnauthorized: the API key is missing or invalid (401).
	ErrUnauthorized = errors.New("hookstation: unauthorized")
	// ErrForbidden: the API key does not permit this (403).
	ErrForbidden = errors.New("hookstation: forbidden")
	// ErrNotFound: the object does not exist, or the API key may not see it (404).
	ErrNotFound = errors.New("hookstation: not found")
	// ErrConflict: the object's state does not allow it, or the object was changed meanwhile (409,
	// 412).
	ErrConflict = errors.New("hookstation: conflict")
	// ErrLeaseLost: the lease ended before the call. Such an error is also an ErrConflict.
	ErrLeaseLost = errors.New("hookstation: lease lost")
	// ErrRateLimited: a rate limit or quota is exceeded (429), even after retries.
	ErrRateLimited = errors.New("hookstation: rate limited")
	// ErrUnavailable: the broker cannot do it now (5xx), even after retries.
	ErrUnavailable = errors.New("hookstation: unavailable")
	// ErrConnection: there was no response, even after retries.
	ErrConnection = errors.New("hookstation: no response")
	// ErrSignature: no signature matches, or the timestamp is too old or too new. Returned by
	// [Verify].
	ErrSignature = errors.New("hookstation: bad signature")
)

// Error describes a request that the broker refused, or that got no response.
type Error struct {
	// Code is the broker's stable name of the error (docs/api.md, "Errors"). Without a response it is
	// "not_sent" if the request was not sent, and "no_response" otherwise.
	Code string
	// Status is the HTTP status: 0 without a response, 200 if only the lease was refused.
	Status int
	// Detail is a sentence for people.
	Detail string
	// Fields maps the name of each invalid field or header to what is wrong with it.
	Fields map[string]string
	// RetryAfter is the wait that the broker requests before the next try, or 0.
	RetryAfter time.Duration

	cause error
}

// Error returns the code, the invalid field if there is only one, and the detail.
func (e *Error) Error() string {
	parts := []string{e.Code}
	if len(e.Fields) == 1 {
		for field := range e.Fields {
			parts = append(parts, field)
		}
	}
	parts = append(parts, e.Detail)
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return "hookstation: " + strings.Join(parts, ": ")
}

// Is reports whether the error is of a kind, such as [ErrNotFound]. The Status decides.
func (e *Error) Is(target error) bool {
	switch e.Status {
	case 0:
		return target == ErrConnection
	case http.StatusOK:
		return target == ErrLeaseLost || target == ErrConflict
	}
	return target == kindOf(e.Status)
}

// Unwrap returns the transport's error if there was no response.
func (e *Error) Unwrap() error { return e.cause }

// RetryError is returned by a handler to have the message delivered again. See [Retry].
type RetryError struct {
	// After is the minimum time until then, in whole seconds.
	After time.Duration
	// Reason is for people.
	Reason string
	// Pause makes the broker send this push consumer nothing else until then, for up to a minute: use
	// it if the handler's own database is down. A [Worker] ignores it.
	Pause bool
}

// Error returns the reason.
func (e *RetryError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("retry after %s", e.After)
	}
	return e.Reason
}

// Retry returns the error by which a handler has the message delivered again after some time. A
// push consumer's retry policy may set a longer time; a worker receives the message again after
// exactly that time.
func Retry(after time.Duration, reason string) error {
	return &RetryError{After: after, Reason: reason}
}

// RejectError is returned by a handler that can never handle the message. See [Reject].
type RejectError struct {
	// Reason is for people.
	Reason string
}

// Error returns the reason.
func (e *RejectError) Error() string {
	if e.Reason == "" {
		return "rejected"
	}
	return e.Reason
}

// Reject returns the error for a message that a handler can never handle: the delivery is dead at
// once.
func Reject(reason string) error { return &RejectError{Reason: reason} }

type fault struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

type problem struct {
	fault
	Code   string  `json:"code"`
	Errors []fault `json:"errors"`
}

// errorOf returns the error for a response: an RFC 9457 problem, or any response of a proxy.
func errorOf(status int, header http.Header, content []byte, now time.Time) *Error {
	var said problem
	if json.Unmarshal(content, &said) != nil {
		said = problem{}
	}
	if said.Detail == "" {
		said.Detail = fmt.Sprintf("HTTP status %d", status)
	}
	fields := map[string]string{}
	faults := said.Errors
	if len(faults) == 0 {
		faults = []fault{said.fault}
	}
	for _, one := range faults {
		if one.Field != "" {
			fields[one.Field] = one.Detail
		}
	}
	return &Error{
		Code:       said.Code,
		Status:     status,
		Detail:     said.Detail,
		Fields:     fields,
		RetryAfter: parseRetryAfter(header.Get("Retry-After"), now),
	}
}

func kindOf(status int) error {
	switch status {
	case http.StatusUnauthorized:
		return ErrUnauthorized
	case http.StatusForbidden:
		return ErrForbidden
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return ErrConflict
	case http.StatusTooManyRequests:
		return ErrRateLimited
	}
	if status >= 500 {
		return ErrUnavailable
	}
	return ErrBadRequest
}

// parseRetryAfter reads a number of seconds or a date (RFC 9110, 10.2.3); 0 for anything else.
func parseRetryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		// Beyond this the conversion overflows, and no caller waits that long.
		return time.Duration(min(max(seconds, 0), 1e9) * float64(time.Second))
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(date.Sub(now), 0)
	}
	return 0
}

func leaseLost(lease, reason string) *Error {
	return &Error{
		Code:   reason,
		Status: http.StatusOK,
		Detail: fmt.Sprintf("The lease %s cannot be used: %s.", lease, reason),
	}
}
