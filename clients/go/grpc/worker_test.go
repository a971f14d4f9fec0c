package hookstationgrpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hookstation "hookstation.dev/client"
	hookstationgrpc "hookstation.dev/client/grpc"
	"hookstation.dev/client/internal/workertest"
)

// grpcOf returns a transport to the running broker.
func grpcOf(t *testing.T) *hookstationgrpc.Transport {
	t.Helper()
	if os.Getenv("HOOKSTATION_GRPC_URL") == "" {
		t.Skip("HOOKSTATION_GRPC_URL names no gRPC server")
	}
	return connect(t, os.Getenv("HOOKSTATION_GRPC_URL"))
}

func TestWorker(t *testing.T) { workertest.Run(t, grpcOf(t)) }

// watched returns a client that counts the requests by which a worker receives or settles.
func watched(t *testing.T) (*hookstation.Client, *requests) {
	t.Helper()
	counted := &requests{counts: map[string]int{}}
	client, err := hookstation.New(hookstation.WithHTTPClient(&http.Client{Transport: counted}))
	if err != nil {
		t.Fatal(err)
	}
	return client, counted
}

type requests struct {
	mutex  sync.Mutex
	counts map[string]int
}

func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	path := request.URL.Path
	if strings.HasSuffix(path, "/receive") || strings.Contains(path, "/leases/") {
		r.mutex.Lock()
		r.counts[path[strings.LastIndex(path, "/")+1:]]++
		r.mutex.Unlock()
	}
	return http.DefaultTransport.RoundTrip(request)
}

func (r *requests) count(operation string) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.counts[operation]
}

func numbers(count int) []string {
	made := make([]string, count)
	for i := range made {
		made[i] = fmt.Sprint(i)
	}
	return made
}

func allFinished(t *testing.T, client *hookstation.Client, ids []string) {
	t.Helper()
	for _, id := range ids {
		workertest.WaitUntil(t, "the end of "+id, func() bool { return workertest.Finished(t, client, id) })
	}
}

func TestStreaming(t *testing.T) {
	transport := grpcOf(t)

	t.Run("NothingOverREST", func(t *testing.T) {
		publisher, channel := workertest.Broker(t)
		ids := workertest.Send(t, publisher, channel, numbers(100)...)
		client, used := watched(t)
		var handled atomic.Int32
		stop := workertest.Work(t, &hookstation.Worker{
			Client: client, Channel: channel, Concurrency: 16, Lease: 2 * time.Second,
			Streams: transport,
			Handler: func(_ context.Context, delivery *hookstation.Delivery) error {
				if string(delivery.Body) == "99" {
					time.Sleep(3 * time.Second) // its lease is extended
				}
				handled.Add(1)
				return nil
			},
		})
		allFinished(t, publisher, ids)

		stop()

		if handled.Load() != 100 || len(used.counts) != 0 {
			t.Error(handled.Load(), used.counts)
		}
	})

	t.Run("HoldsNoMoreThanItHandles", func(t *testing.T) {
		client, channel := workertest.Broker(t)
		workertest.Send(t, client, channel, numbers(20)...)
		mayEnd, began := make(chan struct{}), make(chan struct{}, 20)
		stop := workertest.Work(t, &hookstation.Worker{
			Client: client, Channel: channel, Concurrency: 3, Streams: transport,
			Handler: func(context.Context, *hookstation.Delivery) error {
				began <- struct{}{}
				<-mayEnd
				return nil
			},
		})
		for range 3 {
			<-began
		}
		time.Sleep(time.Second)

		// Another worker gets all the others.
		found, err := client.ReceiveBatch(
			context.Background(), channel, "packing", hookstation.ReceiveOptions{Max: 100},
		)

		close(mayEnd)
		stop()
		if err != nil || len(found) != 17 || len(began) != 0 {
			t.Error(err, len(found), len(began))
		}
	})

	t.Run("FetchesALargeBody", func(t *testing.T) {
		client, channel := workertest.Broker(t)
		body := bytes.Repeat([]byte("x"), 4_000_000)
		sent, err := client.Publish(context.Background(), channel, hookstation.Outgoing{Body: body})
		if errors.Is(err, hookstation.ErrBadRequest) {
			t.Skip("the broker accepts no body that is too large for a stream")
		}
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *hookstation.Delivery, 1)
		workertest.Work(t, &hookstation.Worker{
			Client: client, Channel: channel, Streams: transport,
			Handler: func(_ context.Context, delivery *hookstation.Delivery) error {
				got <- delivery
				return nil
			},
		})

		delivery := <-got

		if !bytes.Equal(delivery.Body, body) || delivery.BodyURL == "" {
			t.Error(len(delivery.Body), delivery.BodyURL)
		}
		allFinished(t, client, []string{sent.ID})
	})

	t.Run("RaisesWhatDoesNotPass", func(t *testing.T) {
		_, channel := workertest.Broker(t)
		stranger, err := hookstation.New(hookstation.WithKey("hsk_made-up"))
		if err != nil {
			t.Fatal(err)
		}
		worker := &hookstation.Worker{
			Client: stranger, Channel: channel, Consumer: "packing", Streams: transport,
		}
		if err := worker.Run(context.Background()); !errors.Is(err, hookstation.ErrUnauthorized) {
			t.Error(err)
		}
	})

	t.Run("ResumesWhatAKilledWorkerHeld", func(t *testing.T) {
		client, channel := workertest.Broker(t)
		ids := workertest.Send(t, client, channel, "held")
		// As if the process had died.
		if _, err := client.ReceiveBatch(context.Background(), channel, "packing",
			hookstation.ReceiveOptions{WorkerID: "w", Lease: time.Hour, Wait: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		workertest.Work(t, &hookstation.Worker{
			Client: client, Channel: channel, Streams: transport, WorkerID: "w", Resume: true,
			Handler: func(context.Context, *hookstation.Delivery) error { return nil },
		})
		allFinished(t, client, ids)
	})

	t.Run("UsesRESTMeanwhile", usesRESTMeanwhile)
}

// A worker whose gRPC server does not listen uses the REST API, and the stream when it listens; when
// the connection breaks it settles over REST, and opens another stream later.
func usesRESTMeanwhile(t *testing.T) {
	publisher, channel := workertest.Broker(t)
	ids := workertest.Send(t, publisher, channel, numbers(5)...)
	address := freeAddress(t)
	transport := connect(t, "grpc://"+address)
	client, used := watched(t)
	workertest.Work(t, &hookstation.Worker{
		Client: client, Channel: channel, Streams: transport,
		Handler: func(context.Context, *hookstation.Delivery) error { return nil },
	})

	allFinished(t, publisher, ids)
	if used.count("receive") == 0 || used.count("ack") == 0 {
		t.Error("not over REST:", used.counts)
	}

	for range 2 {
		gate := openGate(t, address)
		workertest.WaitUntil(t, "a stream", func() bool {
			// A call over REST takes a second.
			before := used.count("receive")
			time.Sleep(4 * time.Second)
			return used.count("receive") == before
		})
		before := used.count("receive") + used.count("ack")
		allFinished(t, publisher, workertest.Send(t, publisher, channel, numbers(5)...))
		if after := used.count("receive") + used.count("ack"); after != before {
			t.Error("over REST while there is a stream:", used.counts)
		}

		gate.close()
		allFinished(t, publisher, workertest.Send(t, publisher, channel, numbers(5)...))
		if used.count("receive")+used.count("ack") == before {
			t.Error("not over REST without a stream")
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// gate forwards connections to the broker's gRPC server until it is closed.
type gate struct {
	listener net.Listener
	mutex    sync.Mutex
	open     []net.Conn
}

func openGate(t *testing.T, address string) *gate {
	t.Helper()
	broker, err := url.Parse(os.Getenv("HOOKSTATION_GRPC_URL"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	made := &gate{listener: listener}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", broker.Host)
			if err != nil {
				near.Close()
				continue
			}
			made.mutex.Lock()
			made.open = append(made.open, near, far)
			made.mutex.Unlock()
			go io.Copy(far, near)
			go io.Copy(near, far)
		}
	}()
	t.Cleanup(made.close)
	return made
}

func (g *gate) close() {
	g.listener.Close()
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for _, connection := range g.open {
		connection.Close()
	}
}
