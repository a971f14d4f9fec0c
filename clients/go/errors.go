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
	// ErrBadRequest: the request cannot be used as it is (400, 405, 411, 413, 415, 422).
	ErrBadRequest = errors.New("hookstation: bad request")
	// ErrUnauthorized: there is no valid key (401).
	ErrUnauthorized = errors.New("hookstation: unauthorized")
	// ErrForbidden: the key is valid and may not do this (403).
	ErrForbidden = errors.New("hookstation: forbidden")
	// ErrNotFound: there is no such object for this key (404).
	ErrNotFound = errors.New("hookstation: not found")
	// ErrConflict: the state of the object forbids it, or another caller changed it first (409, 412).
	ErrConflict = errors.New("hookstation: conflict")
	// ErrLeaseLost: the lease ended before the call. Such an error is also an ErrConflict.
	ErrLeaseLost = errors.New("hookstation: lease lost")
	// ErrRateLimited: a rate or a quota is used up (429), and retries did not help.
	ErrRateLimited = errors.New("hookstation: rate limited")
	// ErrUnavailable: the broker cannot do it now (5xx), and retries did not help.
	ErrUnavailable = errors.New("hookstation: unavailable")
	// ErrConnection: there was no response, and retries did not help.
	ErrConnection = errors.New("hookstation: no response")
	// ErrSignature: a webhook is forged, too old or too new. Returned by [Verify].
	ErrSignature = errors.New("hookstation: bad signature")
)

// Error is a request that the broker refused, or that got no response.
type Error struct {
	// Code is the broker's stable name of the error (docs/api.md, "Errors"). Without a response it is
	// "not_sent" where the request never left this process, and "no_response" elsewhere.
	Code string
	// Status is the HTTP status; 0 without a response.
	Status int
	// Detail is a sentence for people.
	Detail string
	// Fields holds the fields or headers at fault, each with what is wrong with it.
	Fields map[string]string
	// RetryAfter is how long the broker asks to wait before the next try; 0 where it does not.
	RetryAfter time.Duration

	kinds []error
	cause error
}

// Error names the code, a single field at fault, and the detail.
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

// Is reports whether the error is of a kind, such as [ErrNotFound].
func (e *Error) Is(target error) bool { return slices.Contains(e.kinds, target) }

// Unwrap returns the transport's error where there was no response.
func (e *Error) Unwrap() error { return e.cause }

// RetryError is returned by a handler to have the message sent again. See [Retry].
type RetryError struct {
	// After is the least time until then; the broker counts whole seconds.
	After time.Duration
	// Reason is for people.
	Reason string
	// Pause holds back everything for this push consumer meanwhile, up to a minute: for a handler whose
	// own database is down. A [Worker] ignores it.
	Pause bool
}

// Error returns the reason.
func (e *RetryError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("retry after %s", e.After)
	}
	return e.Reason
}

// Retry is what a handler returns for a message that is to come again after some time. A push
// consumer's retry policy may wait longer; a worker's message comes again after exactly that time.
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

// Reject is what a handler returns for a message that it can never handle: it is dead at once.
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

// errorOf returns the error that a response stands for: an RFC 9457 problem, or whatever a proxy
// answered.
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
		kinds:      []error{kindOf(status)},
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
		Detail: fmt.Sprintf("The lease %s was not found: %s.", lease, reason),
		kinds:  []error{ErrLeaseLost, ErrConflict},
	}
}
