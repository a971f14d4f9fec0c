// Package workertest tests workers against a running broker, over the REST API or over streams.
package workertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hookstation "hookstation.dev/client"
)

// Patience is how long a test waits for what must happen.
const Patience = 2 * time.Minute

// Run runs all tests. With a transport the workers use its streams.
func Run(t *testing.T, transport hookstation.StreamTransport) {
	for name, test := range map[string]func(*suite, *testing.T){
		"WorkerSettlesByTheHandlersResult":          (*suite).workerSettlesByTheHandlersResult,
		"LeaseOfALongHandlerIsExtended":             (*suite).leaseOfALongHandlerIsExtended,
		"HandlerContextEndsWhenItsLeaseIsLost":      (*suite).handlerContextEndsWhenItsLeaseIsLost,
		"WorkerLeasesAtMostConcurrencyMessages":     (*suite).workerLeasesAtMostConcurrencyMessages,
		"StoppedWorkerFinishesRunningHandlers":      (*suite).stoppedWorkerFinishesRunningHandlers,
		"HandlersThatDoNotEndAreAbandoned":          (*suite).handlersThatDoNotEndAreAbandoned,
		"WorkerOfAnUnknownConsumerEndsWithTheError": (*suite).workerOfAnUnknownConsumerEndsWithTheError,
	} {
		t.Run(name, func(t *testing.T) { test(&suite{transport}, t) })
	}
}

// suite has the transport of all workers; nil means the REST API.
type suite struct{ transport hookstation.StreamTransport }

// Broker returns a client of a running broker and a new channel for the test.
func Broker(t *testing.T) (*hookstation.Client, string) {
	t.Helper()
	if os.Getenv("HOOKSTATION_KEY") == "" {
		t.Skip("HOOKSTATION_URL and HOOKSTATION_KEY name no broker")
	}
	client, err := hookstation.New()
	if err != nil {
		t.Fatal(err)
	}
	name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
	channel := fmt.Sprintf("go-%s-%d", strings.ToLower(name), time.Now().UnixNano())
	if _, err := client.CreateChannel(context.Background(), channel, nil); err != nil {
		t.Fatal(err)
	}
	registration := hookstation.Registration{
		Settings: map[string]any{"max_attempts": 3, "retry": []int{1}},
	}
	if _, err := client.Register(context.Background(), channel, "packing", registration); err != nil {
		t.Fatal(err)
	}
	return client, channel
}

func (s *suite) work(t *testing.T, worker *hookstation.Worker) func() {
	t.Helper()
	worker.Streams = s.transport
	return Work(t, worker)
}

// Work starts a worker; the returned function stops it and waits until it has ended.
func Work(t *testing.T, worker *hookstation.Worker) func() {
	t.Helper()
	worker.Consumer = "packing"
	worker.Wait = time.Second
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Send publishes messages and returns their ids.
func Send(t *testing.T, client *hookstation.Client, channel string, bodies ...string) []string {
	t.Helper()
	ids := make([]string, len(bodies))
	for i, body := range bodies {
		sent, err := client.Publish(context.Background(), channel, hookstation.Outgoing{Body: body})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = sent.ID
	}
	return ids
}

// WaitUntil fails the test if it waits for too long.
func WaitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what, "did not happen")
		}
	}
}

// Finished reports whether a message is finished.
func Finished(t *testing.T, client *hookstation.Client, id string) bool {
	t.Helper()
	message, err := client.Message(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return message.String("state") == "Finished"
}

func (s *suite) workerSettlesByTheHandlersResult(t *testing.T) {
	client, channel := Broker(t)
	var mutex sync.Mutex
	attempts := map[string][]time.Time{}
	worker := &hookstation.Worker{
		Client: client, Channel: channel,
		Handler: func(_ context.Context, delivery *hookstation.Delivery) error {
			body := string(delivery.Body)
			mutex.Lock()
			defer mutex.Unlock()
			attempts[body] = append(attempts[body], time.Now())
			switch {
			case body == "reject":
				return hookstation.Reject("no such order")
			case body == "retry" && delivery.Attempt == 1:
				return hookstation.Retry(2*time.Second, "not yet")
			case body == "panic" && delivery.Attempt == 1:
				panic("a bug")
			case body == "fail":
				return errors.New("no database")
			}
			return nil
		},
	}
	ids := Send(t, client, channel, "handle", "reject", "retry", "panic", "fail")
	s.work(t, worker)

	for i := range ids {
		WaitUntil(t, "the end of "+ids[i], func() bool { return Finished(t, client, ids[i]) })
	}

	dead := map[string]string{}
	for item, err := range client.DeadLetters(
		context.Background(), channel, "packing", hookstation.DeliveryFilter{},
	) {
		if err != nil {
			t.Fatal(err)
		}
		dead[item.String("message_id")] = item.String("reason")
	}
	if len(dead) != 2 || dead[ids[4]] != "exhausted" || dead[ids[1]] == "exhausted" {
		t.Error(dead, ids)
	}
	for body, count := range map[string]int{"handle": 1, "reject": 1, "retry": 2, "panic": 2, "fail": 3} {
		if len(attempts[body]) != count {
			t.Errorf("%s: %d attempts", body, len(attempts[body]))
		}
	}
	if waited := attempts["retry"][1].Sub(attempts["retry"][0]); waited < 2*time.Second {
		t.Error("a retry after", waited)
	}
}

func (s *suite) leaseOfALongHandlerIsExtended(t *testing.T) {
	client, channel := Broker(t)
	var calls atomic.Int32
	ids := Send(t, client, channel, "slow")
	s.work(t, &hookstation.Worker{
		Client: client, Channel: channel, Lease: 2 * time.Second,
		Handler: func(context.Context, *hookstation.Delivery) error {
			calls.Add(1)
			time.Sleep(6 * time.Second)
			return nil
		},
	})

	WaitUntil(t, "its end", func() bool { return Finished(t, client, ids[0]) })

	if calls.Load() != 1 {
		t.Error(calls.Load(), "calls")
	}
}

func (s *suite) handlerContextEndsWhenItsLeaseIsLost(t *testing.T) {
	client, channel := Broker(t)
	Send(t, client, channel, "stolen")
	lost := make(chan error, 1)
	s.work(t, &hookstation.Worker{
		Client: client, Channel: channel, Lease: 3 * time.Second,
		Handler: func(ctx context.Context, delivery *hookstation.Delivery) error {
			// The worker cannot know about this, as if another process had settled it.
			if err := delivery.Ack(context.Background()); err != nil {
				return err
			}
			<-ctx.Done()
			lost <- context.Cause(ctx)
			return nil
		},
	})

	select {
	case cause := <-lost:
		if !errors.Is(cause, hookstation.ErrLeaseLost) || !errors.Is(cause, hookstation.ErrConflict) {
			t.Error(cause)
		}
	case <-time.After(Patience):
		t.Fatal("the handler was not told")
	}
}

func (s *suite) workerLeasesAtMostConcurrencyMessages(t *testing.T) {
	client, channel := Broker(t)
	var running, most, handled atomic.Int32
	Send(t, client, channel, strings.Split("0123456789", "")...)
	s.work(t, &hookstation.Worker{
		Client: client, Channel: channel, Concurrency: 3,
		Handler: func(context.Context, *hookstation.Delivery) error {
			now := running.Add(1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			time.Sleep(300 * time.Millisecond)
			running.Add(-1)
			handled.Add(1)
			return nil
		},
	})

	WaitUntil(t, "all", func() bool { return handled.Load() == 10 })

	if most.Load() != 3 {
		t.Error("at most", most.Load())
	}
}

func (s *suite) stoppedWorkerFinishesRunningHandlers(t *testing.T) {
	client, channel := Broker(t)
	began := make(chan struct{}, 10)
	var taken atomic.Int32
	stop := s.work(t, &hookstation.Worker{
		Client: client, Channel: channel, Lease: 2 * time.Second,
		Handler: func(context.Context, *hookstation.Delivery) error {
			began <- struct{}{}
			time.Sleep(5 * time.Second) // longer than the lease
			others, err := client.ReceiveBatch(
				context.Background(), channel, "packing", hookstation.ReceiveOptions{},
			)
			taken.Add(int32(len(others)))
			return err
		},
	})
	ids := Send(t, client, channel, "held")
	<-began

	stop()

	if !Finished(t, client, ids[0]) {
		t.Error("the message is not finished")
	}
	if taken.Load() != 0 {
		t.Error("the lease was not extended until the end")
	}
	after := Send(t, client, channel, "later")
	time.Sleep(time.Second)
	if Finished(t, client, after[0]) {
		t.Error("the worker goes on")
	}
}

func (s *suite) handlersThatDoNotEndAreAbandoned(t *testing.T) {
	client, channel := Broker(t)
	began := make(chan struct{}, 1)
	stop := s.work(t, &hookstation.Worker{
		Client: client, Channel: channel, ShutdownTimeout: 500 * time.Millisecond,
		Handler: func(ctx context.Context, _ *hookstation.Delivery) error {
			began <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		},
	})
	Send(t, client, channel, "endless")
	<-began
	from := time.Now()

	stop()

	if took := time.Since(from); took > 10*time.Second {
		t.Error("the end took", took)
	}
}

func (s *suite) workerOfAnUnknownConsumerEndsWithTheError(t *testing.T) {
	client, channel := Broker(t)
	worker := &hookstation.Worker{
		Client: client, Channel: channel, Consumer: "nobody", Streams: s.transport,
	}

	if err := worker.Run(context.Background()); !errors.Is(err, hookstation.ErrNotFound) {
		t.Error(err)
	}
}
