package hookstation

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	maxStreamLeases = 1000
	// Settlements and leases of one request, so that it stays far below the broker's limit.
	maxRequestSettlements = 200
	maxRequestLeases      = maxStreamLeases
	maxCredits            = 10_000
)

// ErrNoStream is returned by a [StreamTransport] that has no address of a gRPC server.
var ErrNoStream = errors.New("hookstation: no address of a gRPC server")

// StreamTransport connects to the broker's gRPC server. The module hookstation.dev/client/grpc
// contains one. This package defines only the interface, because it needs only the standard
// library.
type StreamTransport interface {
	// Open begins a stream, which ends at the latest with ctx. It may wait for the connection. It
	// returns an [*Error], or ErrNoStream.
	Open(ctx context.Context, key string) (StreamCall, error)
}

// StreamCall is a stream of a [StreamTransport]. One goroutine sends while another one receives.
type StreamCall interface {
	// Send sends a request, and waits while the broker reads no requests. After an error, Receive
	// returns the reason.
	Send(request StreamRequest) error
	// CloseSend tells the broker that no more requests come.
	CloseSend() error
	// Receive returns the next response, io.EOF at the end of the stream, or an [*Error]. It sets the
	// ID of each result's settlement, and no other field of it.
	Receive() (StreamResponse, error)
}

// StreamRequest is what a client sends in one piece.
type StreamRequest struct {
	// Subscription is set in the first request, and only there.
	Subscription *Subscription
	// Credits is how many more messages the client can take.
	Credits     int
	Settlements []Settlement
}

// Subscription names the pull consumer whose messages a stream receives.
type Subscription struct {
	Channel, Consumer string
	// Lease is the time until another worker may receive a message, in whole seconds; by default 30
	// seconds.
	Lease time.Duration
	// WorkerID identifies the caller in the console, and for Resume and Sticky.
	WorkerID string
	// Resume first receives the messages that this WorkerID has already leased, after a crash.
	Resume bool
	// Sticky sends messages of an ordering key to the same WorkerID.
	Sticky bool
	// AutoAck acknowledges the messages before the broker sends them: delivery at most once, without
	// leases.
	AutoAck bool
}

// Action is what a [Settlement] does.
type Action string

// The actions of settlements; the methods of [Client] with these names describe them.
const (
	ActionAck     Action = "ack"
	ActionNack    Action = "nack"
	ActionRelease Action = "release"
	ActionExtend  Action = "extend"
)

// Settlement settles leases on a stream.
type Settlement struct {
	// ID is set by [Stream].
	ID     uint64
	Action Action
	Leases []string
	// Delay of a nack or release, in whole seconds; nil is the consumer's retry policy, or now.
	Delay *time.Duration
	// Error of a nack, for people; its first 300 characters are kept.
	Error string
	// Final nack: a dead letter at once.
	Final bool
	// Lease of an extension: the leases end after this time from now, in whole seconds.
	Lease time.Duration
}

// isLike reports whether both differ only in their leases.
func (s Settlement) isLike(other Settlement) bool {
	return s.Action == other.Action && s.Error == other.Error && s.Final == other.Final &&
		s.Lease == other.Lease && (s.Delay == nil) == (other.Delay == nil) &&
		(s.Delay == nil || *s.Delay == *other.Delay)
}

// StreamResponse is what the broker sends in one piece. The first one is empty: the broker has
// accepted the subscription.
type StreamResponse struct {
	Deliveries []*Delivery
	Results    []SettlementResult
	// Stopping means that the broker sends no more messages, because it stops. It still settles leases
	// for a few seconds.
	Stopping bool
}

// SettlementResult confirms a settlement: the broker has stored it.
type SettlementResult struct {
	Settlement Settlement
	// Failed maps the leases that were not settled to the reason: "expired", "unknown" or "too_long".
	Failed map[string]string
}

// Stream receives the messages of a pull consumer over one connection, as far as its credits allow,
// and settles them on it. One goroutine calls Receive; any goroutine may call the other methods,
// which do not wait.
type Stream struct {
	client *Client
	cancel context.CancelFunc
	// Closed when call or failure is set.
	opened  chan struct{}
	call    StreamCall
	failure error
	// Has a token when there is something to send.
	wake chan struct{}

	mutex       sync.Mutex
	isAccepted  bool
	isClosing   bool
	credits     int
	lastID      uint64
	queue       []Settlement
	unconfirmed []Settlement
}

// OpenStream begins to receive over a stream. It does not wait; Receive returns the error if the
// broker refuses the subscription or cannot be reached. The stream ends at the latest with ctx.
func (c *Client) OpenStream(
	ctx context.Context, transport StreamTransport, subscription Subscription, credits int,
) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	stream := &Stream{
		client: c,
		cancel: cancel,
		opened: make(chan struct{}),
		wake:   make(chan struct{}, 1),
	}
	go stream.send(ctx, transport, StreamRequest{Subscription: &subscription, Credits: credits})
	return stream
}

// Receive waits for the next response. It returns io.EOF at the end of the stream, and an [*Error]
// if the broker refused it or the connection broke.
//
// A Delivery with a BodyURL has no Body: get it with [Client.Body].
func (s *Stream) Receive() (StreamResponse, error) {
	<-s.opened
	if s.failure != nil {
		s.cancel()
		return StreamResponse{}, s.failure
	}
	response, err := s.call.Receive()
	if err != nil {
		s.cancel()
		return response, err
	}
	for _, delivery := range response.Deliveries {
		delivery.client = s.client
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.isAccepted = true
	for i := range response.Results {
		s.confirm(&response.Results[i].Settlement)
	}
	return response, nil
}

// confirm completes a settlement of which only the id is known.
func (s *Stream) confirm(settlement *Settlement) {
	isConfirmed := func(sent Settlement) bool { return sent.ID == settlement.ID }
	if at := slices.IndexFunc(s.unconfirmed, isConfirmed); at >= 0 {
		*settlement = s.unconfirmed[at]
		s.unconfirmed = slices.Delete(s.unconfirmed, at, at+1)
	}
}

// Grant lets the broker send that many more messages. A stream has up to 10,000 credits left.
func (s *Stream) Grant(credits int) {
	s.mutex.Lock()
	s.credits += credits
	s.mutex.Unlock()
	s.notify()
}

// Settle settles leases soon. A result of Receive confirms it. At the end of the stream, Unconfirmed
// returns what may not be settled.
//
// Settlements that follow each other and differ only in their leases may have one common result.
func (s *Stream) Settle(settlement Settlement) {
	settlement.Error = truncate(settlement.Error, maxErrorLength)
	s.mutex.Lock()
	for leases := range slices.Chunk(settlement.Leases, maxStreamLeases) {
		s.enqueue(settlement, leases)
	}
	s.mutex.Unlock()
	s.notify()
}

func (s *Stream) enqueue(settlement Settlement, leases []string) {
	if len(s.queue) > 0 {
		last := &s.queue[len(s.queue)-1]
		if last.isLike(settlement) && len(last.Leases)+len(leases) <= maxStreamLeases {
			last.Leases = append(last.Leases, leases...)
			return
		}
	}
	settlement.Leases = slices.Clone(leases)
	s.queue = append(s.queue, settlement)
}

// Close sends what is left and tells the broker that nothing follows. Receive returns what still
// comes, and io.EOF when all is settled.
func (s *Stream) Close() {
	s.mutex.Lock()
	s.isClosing = true
	s.mutex.Unlock()
	s.notify()
}

// Cancel ends the stream at once.
func (s *Stream) Cancel() { s.cancel() }

// IsAccepted reports whether the broker has accepted the subscription.
func (s *Stream) IsAccepted() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.isAccepted
}

// Unconfirmed returns the settlements that no result has confirmed. After the end of the stream they
// can be settled with the methods of [Client].
func (s *Stream) Unconfirmed() []Settlement {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Concat(s.unconfirmed, s.queue)
}

// isSettled reports whether every settlement was confirmed.
func (s *Stream) isSettled() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return len(s.queue) == 0 && len(s.unconfirmed) == 0
}

func (s *Stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default: // the sender is already to look
	}
}

// send opens the stream and sends requests until it is closed or has ended.
func (s *Stream) send(ctx context.Context, transport StreamTransport, request StreamRequest) {
	s.call, s.failure = transport.Open(ctx, s.client.key)
	close(s.opened)
	if s.failure != nil {
		return
	}
	for isLast := false; ; {
		hasContent := request.Subscription != nil || request.Credits > 0 || len(request.Settlements) > 0
		if hasContent && s.call.Send(request) != nil {
			return // Receive returns the reason
		}
		if isLast {
			_ = s.call.CloseSend() // Receive returns the reason
			return
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		request, isLast = s.next()
	}
}

// next returns what to send next, and whether nothing follows.
func (s *Stream) next() (StreamRequest, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	request := StreamRequest{Credits: s.credits}
	s.credits = 0
	count, leases := 0, 0
	for count < min(len(s.queue), maxRequestSettlements) {
		if leases += len(s.queue[count].Leases); leases > maxRequestLeases && count > 0 {
			break
		}
		s.lastID++
		s.queue[count].ID = s.lastID
		count++
	}
	request.Settlements = slices.Clone(s.queue[:count])
	s.unconfirmed = append(s.unconfirmed, request.Settlements...)
	s.queue = slices.Clone(s.queue[count:])
	if len(s.queue) > 0 {
		s.notify()
	}
	return request, s.isClosing && len(s.queue) == 0
}
