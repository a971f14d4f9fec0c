package hookstation

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// How long a worker uses the REST API after its stream has ended.
	streamRetry = 10 * time.Second
	// How long the broker may take to confirm the last settlements of a stream.
	streamEnd = 5 * time.Second
)

// workerStream is a stream that a goroutine of the worker reads.
type workerStream struct {
	*Stream
	// Closed when no more messages come: the stream has ended, or the broker stops.
	over     chan struct{}
	markOver func()
	// Has a token when a response was read.
	progress chan struct{}
	// Closed at the end of the stream. Before that, failure is set if an error ended it.
	ended   chan struct{}
	failure error
}

func (r *run) mayStream() bool {
	return r.settings.Streams != nil && !time.Now().Before(r.streamAt)
}

// receiveStream receives over a stream until it ends, the broker stops or ctx ends. In the last
// case the stream stays: finish ends it.
func (r *run) receiveStream(ctx context.Context) error {
	stream := r.openStream()
	go r.read(stream)
	select {
	case <-ctx.Done():
		return nil
	case <-stream.over:
	}
	r.endStream(stream)
	if stream.IsAccepted() {
		r.settings.Resume = false
	}
	r.streamAt = time.Now().Add(streamRetry)
	logger := r.settings.Logger
	switch {
	case stream.failure == nil:
		logger.Info("the broker ended the stream, using the REST API")
	case errors.Is(stream.failure, ErrNoStream):
		r.settings.Streams = nil
	// A stream that was accepted ends with a settlement that is refused, too.
	case stream.IsAccepted(), isPassing(stream.failure):
		logger.Warn("the stream ended, using the REST API", "error", stream.failure)
	default:
		return stream.failure
	}
	return nil
}

func (r *run) openStream() *workerStream {
	subscription := Subscription{
		Channel:  r.settings.Channel,
		Consumer: r.settings.Consumer,
		Lease:    r.settings.Lease,
		WorkerID: r.settings.WorkerID,
		Resume:   r.settings.Resume,
		Sticky:   r.settings.Sticky,
	}
	over := make(chan struct{})
	// Locked, because each handler that ends from now on grants a credit.
	r.mutex.Lock()
	defer r.mutex.Unlock()
	credits := min(cap(r.slots)-len(r.slots), maxCredits)
	r.stream = &workerStream{
		// Not r.ctx, which ends before the stream.
		Stream: r.settings.Client.OpenStream(
			context.WithoutCancel(r.ctx), r.settings.Streams, subscription, credits,
		),
		over:     over,
		markOver: sync.OnceFunc(func() { close(over) }),
		progress: make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
	return r.stream
}

func (r *run) currentStream() *workerStream {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.stream
}

func (r *run) read(stream *workerStream) {
	defer stream.markOver()
	defer close(stream.ended)
	for {
		response, err := stream.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				stream.failure = err
			}
			return
		}
		for i, delivery := range response.Deliveries {
			if r.receiving.Err() != nil {
				r.release(response.Deliveries[i:])
				break
			}
			r.start(delivery)
		}
		for _, result := range response.Results {
			action := result.Settlement.Action
			r.noteFailed(r.settings.Logger.With("action", action), action, result.Failed)
		}
		if response.Stopping {
			stream.markOver()
		}
		select {
		case stream.progress <- struct{}{}:
		default:
		}
	}
}

// endStream closes the stream and settles over the REST API what the stream has not settled.
func (r *run) endStream(stream *workerStream) {
	if stream == nil {
		return
	}
	r.mutex.Lock()
	r.stream = nil
	r.mutex.Unlock()
	stream.end()
	for _, settlement := range stream.Unconfirmed() {
		r.settleOverREST(settlement)
	}
}

func (s *workerStream) end() {
	// Before Close, because a stream that is closed may end before its last responses are read.
	confirmed := time.After(streamEnd)
	for isWaiting := true; isWaiting && !s.isSettled(); {
		select {
		case <-s.progress:
		case <-s.ended:
			isWaiting = false
		case <-confirmed:
			isWaiting = false
		}
	}
	s.Close()
	select {
	case <-s.ended:
	case <-time.After(streamEnd):
		s.Cancel()
		<-s.ended
	}
}
