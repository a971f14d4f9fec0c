package hookstation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	defaultConcurrency     = 8
	defaultLease           = 30 * time.Second
	defaultWorkerWait      = 5 * time.Second
	defaultShutdownTimeout = 30 * time.Second
	// Pause after a call that failed in spite of its retries.
	afterFailure = 2 * time.Second
	maxWorkerID  = 64
)

// Worker calls Handler for each message of a pull consumer, each in a goroutine of its own, and
// extends the leases of those that run. Zero fields have the values that they name.
//
// When the handler returns nil, the message is acknowledged. An error of [Retry] lets it come again
// after its time, one of [Reject] makes it a dead letter at once; any other error, and a panic, is a
// failed attempt. The handler's context ends when the lease is lost, with the cause [ErrLeaseLost], and
// when the shutdown timeout is over.
type Worker struct {
	Client            *Client
	Channel, Consumer string
	Handler           func(ctx context.Context, delivery *Delivery) error

	// Concurrency is how many messages are held at a time, 8.
	Concurrency int
	// Lease is how long a message is held without an extension, 30 seconds.
	Lease time.Duration
	// Wait is how long one call waits for messages, 5 seconds. So long the end of Run may take, too.
	Wait time.Duration
	// ShutdownTimeout is how long Run waits for handlers when it ends, 30 seconds.
	ShutdownTimeout time.Duration
	// WorkerID names the worker, host name and process id.
	WorkerID string
	// Resume begins with what a former worker of the same WorkerID held when it died.
	Resume bool
	// Sticky has messages of an ordering key come to the same worker.
	Sticky bool
	// Logger gets warnings, [slog.Default].
	Logger *slog.Logger
}

// Run works until the context ends, and returns nil then: it receives no more, and waits for the
// handlers that run. Messages whose handlers do not end in time come back when their leases end. It
// returns an error that does not end by itself, such as a consumer that does not exist.
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := worker.Run(ctx)
func (w *Worker) Run(ctx context.Context) error {
	run := newRun(w, ctx)
	ended := make(chan struct{})
	defer close(ended) // behind finish: handlers that still run keep their leases
	go run.extendLeases(ended)
	defer run.finish()
	for ctx.Err() == nil {
		if !run.waitForRoom(ctx) {
			break
		}
		if err := run.receive(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run is the state of a worker while Run runs.
type run struct {
	settings Worker
	// Of handlers and of calls that must not break when Run's context ends.
	ctx    context.Context
	cancel context.CancelFunc

	// Holds a token for each handler that runs.
	slots   chan struct{}
	running sync.WaitGroup

	mutex sync.Mutex
	// By lease: ends the handler's context.
	held map[string]context.CancelCauseFunc
}

func newRun(w *Worker, ctx context.Context) *run {
	settings := *w
	settings.Concurrency = orDefault(w.Concurrency, defaultConcurrency)
	settings.Lease = orDefault(w.Lease, defaultLease)
	settings.Wait = orDefault(w.Wait, defaultWorkerWait)
	settings.ShutdownTimeout = orDefault(w.ShutdownTimeout, defaultShutdownTimeout)
	settings.WorkerID = orDefault(w.WorkerID, workerID())
	settings.Logger = orDefault(w.Logger, slog.Default())
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &run{
		settings: settings,
		ctx:      lasting,
		cancel:   cancel,
		slots:    make(chan struct{}, settings.Concurrency),
		held:     map[string]context.CancelCauseFunc{},
	}
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func workerID() string {
	host, _ := os.Hostname()
	return truncate(fmt.Sprintf("%s-%d", host, os.Getpid()), maxWorkerID)
}

// waitForRoom waits until one more message may be held.
func (r *run) waitForRoom(ctx context.Context) bool {
	select {
	case r.slots <- struct{}{}:
		<-r.slots
		return true
	case <-ctx.Done():
		return false
	}
}

// receive receives what there is room for and starts the handlers.
func (r *run) receive(ctx context.Context) error {
	// The call goes on when ctx ends: what a broken one had received would be lost until its leases end.
	batch, err := r.settings.Client.ReceiveBatch(
		r.ctx, r.settings.Channel, r.settings.Consumer, ReceiveOptions{
			Max:      min(cap(r.slots)-len(r.slots), maxLeases),
			Wait:     r.settings.Wait,
			Lease:    r.settings.Lease,
			WorkerID: r.settings.WorkerID,
			Resume:   r.settings.Resume,
			Sticky:   r.settings.Sticky,
		},
	)
	if err != nil {
		if !isPassing(err) {
			return err
		}
		r.settings.Logger.Warn("cannot receive", "error", err)
		_ = sleep(ctx, afterFailure) // Run sees by itself that ctx has ended
		return nil
	}
	r.settings.Resume = false
	for i, delivery := range batch {
		if ctx.Err() != nil {
			r.release(batch[i:])
			return nil
		}
		r.start(delivery)
	}
	return nil
}

func isPassing(err error) bool {
	return errors.Is(err, ErrConnection) || errors.Is(err, ErrRateLimited) ||
		errors.Is(err, ErrUnavailable)
}

func (r *run) release(batch []*Delivery) {
	leases := make([]string, len(batch))
	for i, delivery := range batch {
		leases[i] = delivery.Lease
	}
	if _, err := r.settings.Client.Release(r.ctx, 0, leases...); err != nil {
		r.settings.Logger.Warn("cannot release, the messages come again", "error", err)
	}
}

func (r *run) start(delivery *Delivery) {
	r.slots <- struct{}{}
	r.running.Add(1)
	handling, cancel := context.WithCancelCause(r.ctx)
	r.mutex.Lock()
	r.held[delivery.Lease] = cancel
	r.mutex.Unlock()
	go func() {
		defer func() {
			cancel(nil)
			<-r.slots
			r.running.Done()
		}()
		err := r.handle(handling, delivery)
		r.mutex.Lock()
		delete(r.held, delivery.Lease)
		r.mutex.Unlock()
		r.settle(delivery, err)
	}()
}

// handle calls the handler; a panic is an error.
func (r *run) handle(ctx context.Context, delivery *Delivery) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	return r.settings.Handler(ctx, delivery)
}

func (r *run) settle(delivery *Delivery, failure error) {
	// Handlers that end after the shutdown timeout still say how they ended.
	ctx := context.WithoutCancel(r.ctx)
	logger := r.settings.Logger
	var err error
	if failure == nil {
		err = delivery.Ack(ctx)
	} else {
		options, isExpected := nackOptions(failure)
		if !isExpected {
			logger.Error("a handler failed", "message", delivery.ID, "error", failure)
		}
		err = delivery.Nack(ctx, options)
	}
	if err != nil {
		logger.Warn("cannot settle, the message comes again", "message", delivery.ID, "error", err)
	}
}

// nackOptions returns what a handler's error says, and whether the handler meant it.
func nackOptions(failure error) (NackOptions, bool) {
	var retry *RetryError
	if errors.As(failure, &retry) {
		return NackOptions{Delay: &retry.After, Error: failure.Error()}, true
	}
	var reject *RejectError
	if errors.As(failure, &reject) {
		return NackOptions{Error: failure.Error(), Final: true}, true
	}
	return NackOptions{Error: failure.Error()}, false
}

// extendLeases extends what is held, three times within a lease.
func (r *run) extendLeases(ended <-chan struct{}) {
	ticker := time.NewTicker(r.settings.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		leases := r.leases()
		for start := 0; start < len(leases); start += maxLeases {
			some := leases[start:min(start+maxLeases, len(leases))]
			settled, err := r.settings.Client.Extend(r.ctx, r.settings.Lease, some...)
			if err != nil {
				r.settings.Logger.Warn("cannot extend leases", "error", err)
				continue
			}
			r.lose(settled.Failed)
		}
	}
}

func (r *run) leases() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	leases := make([]string, 0, len(r.held))
	for lease := range r.held {
		leases = append(leases, lease)
	}
	return leases
}

// lose ends the contexts of handlers whose messages may be with another worker.
func (r *run) lose(failed map[string]string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for lease, reason := range failed {
		// One that was settled meanwhile is held no more.
		if cancel, isHeld := r.held[lease]; isHeld {
			delete(r.held, lease)
			cancel(leaseLost(lease, reason))
			r.settings.Logger.Warn("a lease cannot be extended", "lease", lease, "reason", reason)
		}
	}
}

// finish waits for the handlers.
func (r *run) finish() {
	defer r.cancel()
	done := make(chan struct{})
	go func() {
		r.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(r.settings.ShutdownTimeout):
		r.settings.Logger.Warn("handlers did not end in time", "count", len(r.slots))
	}
}
