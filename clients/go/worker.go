package hookstation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	defaultConcurrency     = 8
	defaultLease           = 30 * time.Second
	defaultWorkerWait      = 5 * time.Second
	defaultShutdownTimeout = 30 * time.Second
	// Pause after a receive call whose retries failed.
	afterFailure = 2 * time.Second
	maxWorkerID  = 64
)

// Worker calls Handler for each message of a pull consumer, each in its own goroutine, and extends
// the leases of running handlers. Zero fields have the default values that they name.
//
// When the handler returns nil, the worker acknowledges the message. After a [Retry] error it is
// delivered again after that time; after a [Reject] error it is a dead letter at once; any other
// error or a panic is a failed attempt. The handler's context ends when the lease is lost, with the
// cause [ErrLeaseLost], and when the shutdown timeout ends.
type Worker struct {
	Client            *Client
	Channel, Consumer string
	Handler           func(ctx context.Context, delivery *Delivery) error

	// Concurrency is the maximum number of leased messages, 8.
	Concurrency int
	// Lease is the duration of a lease, which is extended while the handler runs, 30 seconds.
	Lease time.Duration
	// Wait is how long one call waits for messages, 5 seconds. Stopping may take as long.
	Wait time.Duration
	// ShutdownTimeout is how long Run waits for running handlers when it stops, 30 seconds.
	ShutdownTimeout time.Duration
	// WorkerID identifies the worker, host name and process id.
	WorkerID string
	// Resume first receives the messages that a killed worker with the same WorkerID had leased.
	Resume bool
	// Sticky sends messages of an ordering key to the same worker.
	Sticky bool
	// Streams makes the worker receive and settle messages over a gRPC stream. While it cannot be
	// reached, and for ten seconds after a stream has ended, the worker uses the REST API. The module
	// hookstation.dev/client/grpc has an implementation; nil means only the REST API.
	Streams StreamTransport
	// Logger gets warnings, [slog.Default].
	Logger *slog.Logger
}

// Run receives and handles messages until the context ends. Then it receives no more, waits for
// running handlers, and returns nil. Messages whose handlers do not end in time are delivered again
// when their leases end. It returns errors that are not temporary, such as a consumer that does not
// exist.
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := worker.Run(ctx)
func (w *Worker) Run(ctx context.Context) error {
	run := newRun(w, ctx)
	ended := make(chan struct{})
	defer close(ended) // after finish: running handlers keep their leases
	go run.extendLeases(ended)
	defer run.finish()
	for ctx.Err() == nil {
		receive := run.receive
		if run.mayStream() {
			receive = run.receiveStream
		}
		if err := receive(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run is the state of a worker while Run runs.
type run struct {
	settings Worker
	// Run's context: the worker receives until it ends.
	receiving context.Context
	// Context of handlers, and of calls that must not be cancelled with Run's context.
	ctx    context.Context
	cancel context.CancelFunc
	// When a stream may be opened again.
	streamAt time.Time

	// Has a token for each running handler.
	slots   chan struct{}
	running sync.WaitGroup

	mutex sync.Mutex
	// Cancels the handler's context, by lease.
	held map[string]context.CancelCauseFunc
	// nil while the worker uses the REST API.
	stream *workerStream
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
		settings:  settings,
		receiving: ctx,
		ctx:       lasting,
		cancel:    cancel,
		slots:     make(chan struct{}, settings.Concurrency),
		held:      map[string]context.CancelCauseFunc{},
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

// waitForRoom waits until another message may be leased.
func (r *run) waitForRoom(ctx context.Context) bool {
	select {
	case r.slots <- struct{}{}:
		<-r.slots
		return true
	case <-ctx.Done():
		return false
	}
}

// receive receives as many messages as may be leased and starts their handlers.
func (r *run) receive(ctx context.Context) error {
	if !r.waitForRoom(ctx) {
		return nil
	}
	// The call is not cancelled with ctx: the messages of a cancelled call would wait until their
	// leases end.
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
		_ = sleep(ctx, afterFailure) // Run checks ctx itself
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
	r.settle(Settlement{Action: ActionRelease, Leases: leases})
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
			r.free()
			r.running.Done()
		}()
		settlement := r.handle(handling, delivery)
		r.mutex.Lock()
		delete(r.held, delivery.Lease)
		r.mutex.Unlock()
		r.settle(settlement, "message", delivery.ID)
	}()
}

// free makes room for another message.
func (r *run) free() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	<-r.slots
	if r.stream != nil && r.receiving.Err() == nil {
		r.stream.Grant(1)
	}
}

// handle calls the handler and returns how to settle its message.
func (r *run) handle(ctx context.Context, delivery *Delivery) Settlement {
	settlement := Settlement{Action: ActionAck, Leases: []string{delivery.Lease}}
	if delivery.BodyURL != "" {
		body, err := r.settings.Client.Body(ctx, delivery.ID)
		if err != nil {
			r.settings.Logger.Warn("cannot get the body", "message", delivery.ID, "error", err)
			settlement.Action = ActionRelease
			return settlement
		}
		delivery.Body = body
	}
	if failure := r.call(ctx, delivery); failure != nil {
		options, isExpected := nackOptions(failure)
		if !isExpected {
			r.settings.Logger.Error("handler failed", "message", delivery.ID, "error", failure)
		}
		settlement.Action = ActionNack
		settlement.Delay, settlement.Error, settlement.Final = options.Delay, options.Error, options.Final
	}
	return settlement
}

// call calls the handler and returns a panic as an error.
func (r *run) call(ctx context.Context, delivery *Delivery) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	return r.settings.Handler(ctx, delivery)
}

// settle settles leases over the stream, if there is one, else over the REST API. A warning of the
// latter has the attributes.
func (r *run) settle(settlement Settlement, attributes ...any) {
	r.mutex.Lock()
	stream := r.stream
	if stream != nil {
		stream.Settle(settlement)
	}
	r.mutex.Unlock()
	if stream == nil {
		r.settleOverREST(settlement, attributes...)
	}
}

func (r *run) settleOverREST(settlement Settlement, attributes ...any) {
	ctx := r.ctx
	if settlement.Action != ActionExtend {
		// Handlers that end after the shutdown timeout still settle their messages.
		ctx = context.WithoutCancel(ctx)
	}
	logger := r.settings.Logger.With(attributes...).With("action", settlement.Action)
	for leases := range slices.Chunk(settlement.Leases, maxLeases) {
		settlement.Leases = leases
		settled, err := r.settings.Client.settleAs(ctx, settlement)
		if err != nil {
			logger.Warn("cannot settle or extend a lease", "error", err)
			continue
		}
		r.noteFailed(logger, settlement.Action, settled.Failed)
	}
}

// noteFailed handles leases that ended before they were settled.
func (r *run) noteFailed(logger *slog.Logger, action Action, failed map[string]string) {
	if action == ActionExtend {
		r.lose(failed)
		return
	}
	for lease, reason := range failed {
		logger.Warn("a lease ended before it was settled", "lease", lease, "reason", reason)
	}
}

// nackOptions returns the options for a handler's error, and whether it is Retry or Reject.
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

// extendLeases extends all leases, three times per lease duration.
func (r *run) extendLeases(ended <-chan struct{}) {
	ticker := time.NewTicker(r.settings.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		if leases := r.leases(); len(leases) > 0 {
			r.settle(Settlement{Action: ActionExtend, Leases: leases, Lease: r.settings.Lease})
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

// lose cancels the contexts of handlers whose leases are lost.
func (r *run) lose(failed map[string]string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for lease, reason := range failed {
		// A message that was settled meanwhile has no entry.
		if cancel, isHeld := r.held[lease]; isHeld {
			delete(r.held, lease)
			cancel(leaseLost(lease, reason))
			r.settings.Logger.Warn("a lease cannot be extended", "lease", lease, "reason", reason)
		}
	}
}

// finish waits for running handlers, and ends the stream.
func (r *run) finish() {
	defer r.cancel()
	defer func() { r.endStream(r.currentStream()) }()
	done := make(chan struct{})
	go func() {
		r.running.Wait()
		close(done)
	}()
	timeout := time.After(r.settings.ShutdownTimeout)
	if stream := r.currentStream(); stream != nil {
		select {
		case <-done:
			return
		case <-stream.over:
			r.endStream(stream) // the REST API settles and extends the leases of those that still run
		case <-timeout:
			r.warnOfRunning()
			return
		}
	}
	select {
	case <-done:
	case <-timeout:
		r.warnOfRunning()
	}
}

func (r *run) warnOfRunning() {
	r.settings.Logger.Warn("handlers did not end in time", "count", len(r.slots))
}
