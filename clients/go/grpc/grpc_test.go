package hookstationgrpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hookstation "hookstation.dev/client"
	hookstationgrpc "hookstation.dev/client/grpc"
	pb "hookstation.dev/client/grpc/internal/hookstationpb"
)

type receiving = grpc.BidiStreamingServer[pb.ReceiveRequest, pb.ReceiveResponse]

// server is a gRPC server whose streams a function serves.
type server struct {
	pb.UnimplementedHookstationServer
	serve func(receiving) error
}

func (s server) Receive(stream receiving) error { return s.serve(stream) }

// serving returns a transport to a server.
func serving(t *testing.T, serve func(receiving) error) *hookstationgrpc.Transport {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	made := grpc.NewServer()
	pb.RegisterHookstationServer(made, server{serve: serve})
	go made.Serve(listener)
	t.Cleanup(made.Stop)
	return connect(t, "grpc://"+listener.Addr().String())
}

func connect(t *testing.T, url string) *hookstationgrpc.Transport {
	t.Helper()
	transport, err := hookstationgrpc.New(hookstationgrpc.WithURL(url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { transport.Close() })
	return transport
}

func newClient(t *testing.T, options ...hookstation.Option) *hookstation.Client {
	t.Helper()
	some := []hookstation.Option{hookstation.WithURL("http://127.0.0.1:1"), hookstation.WithKey("hsk_x")}
	client, err := hookstation.New(append(some, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAddressIsThatOfAGRPCServer(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:9090", "127.0.0.1:9090", "grpc://", "grpc://a:1/b"} {
		if _, err := hookstationgrpc.New(hookstationgrpc.WithURL(url)); err == nil {
			t.Error(url, "is accepted")
		}
	}
	t.Setenv("HOOKSTATION_GRPC_URL", "grpcs://broker.example:443")
	if transport, err := hookstationgrpc.New(); err != nil || transport.Close() != nil {
		t.Error(err)
	}
}

func TestWithoutAnAddressThereIsNoStream(t *testing.T) {
	t.Setenv("HOOKSTATION_GRPC_URL", "")
	transport := connect(t, "")
	if _, err := transport.Open(context.Background(), "hsk_x"); !errors.Is(err, hookstation.ErrNoStream) {
		t.Error(err)
	}
}

func TestStreamCarriesEveryField(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	requests := make(chan *pb.ReceiveRequest, 10)
	keys := make(chan []string, 1)
	transport := serving(t, func(stream receiving) error {
		found, _ := metadata.FromIncomingContext(stream.Context())
		keys <- found.Get("authorization")
		stream.Send(&pb.ReceiveResponse{Stopping: true, Deliveries: []*pb.Delivery{{
			Id: "msg_1", DeliveryId: "dlv_1", Lease: "lease", LeaseExpiresAt: timestamppb.New(at),
			Attempt: 2, MaxAttempts: 3, EventType: "order.created", Priority: 4, OrderingKey: "k",
			Replay: true, AcceptedAt: timestamppb.New(at), ContentType: "text/plain",
			Headers: map[string]string{"a": "b"}, Body: []byte{0, 255}, BodyUrl: "http://body",
		}, {Id: "msg_2"}}})
		for {
			request, err := stream.Recv()
			if err != nil {
				return nil
			}
			requests <- request
			for _, one := range request.GetSettlements() {
				stream.Send(&pb.ReceiveResponse{Results: []*pb.SettlementResult{{
					Id: one.GetId(), Failed: []*pb.LeaseFailure{{Lease: one.GetLeases()[0], Error: "expired"}},
				}}})
			}
		}
	})
	stream := newClient(t).OpenStream(context.Background(), transport, hookstation.Subscription{
		Channel: "orders", Consumer: "billing", Lease: 1500 * time.Millisecond, WorkerID: "w",
		Resume: true, Sticky: true, AutoAck: true,
	}, 5)
	stream.Settle(hookstation.Settlement{
		Action: hookstation.ActionNack, Leases: []string{"a"}, Delay: hookstation.Ptr(time.Duration(0)),
		Error: "why", Final: true,
	})
	stream.Settle(hookstation.Settlement{
		Action: hookstation.ActionExtend, Leases: []string{"b"}, Lease: time.Minute,
	})
	stream.Close()

	response, err := stream.Receive()
	if err != nil {
		t.Fatal(err)
	}
	results := 0
	for end := false; !end; {
		more, err := stream.Receive()
		if end = errors.Is(err, io.EOF); err != nil && !end {
			t.Fatal(err)
		}
		for _, one := range more.Results {
			results++
			if one.Failed[one.Settlement.Leases[0]] != "expired" {
				t.Error(one)
			}
		}
	}

	if key := <-keys; !reflect.DeepEqual(key, []string{"Bearer hsk_x"}) {
		t.Error(key)
	}
	found := *response.Deliveries[0]
	body := found.Body
	found.Body = nil
	if string(body) != "\x00\xff" || !found.LeaseExpiresAt.Equal(at) || !found.AcceptedAt.Equal(at) ||
		!response.Stopping {
		t.Error(found, response.Stopping)
	}
	if found.ID != "msg_1" || found.DeliveryID != "dlv_1" || found.Lease != "lease" ||
		found.Attempt != 2 || found.MaxAttempts != 3 || found.EventType != "order.created" ||
		found.Priority != 4 || found.OrderingKey != "k" || !found.Replay ||
		found.ContentType != "text/plain" || found.Headers["a"] != "b" || found.BodyURL != "http://body" {
		t.Error(found)
	}
	if second := response.Deliveries[1]; second.Headers == nil || !second.LeaseExpiresAt.IsZero() {
		t.Error(second)
	}
	subscription := &pb.Subscription{
		Channel: "orders", Consumer: "billing", LeaseS: proto.Float64(2), WorkerId: "w", Resume: true,
		Sticky: true, AutoAck: true,
	}
	first := <-requests
	if first.GetCredits() != 5 || !proto.Equal(first.GetSubscription(), subscription) {
		t.Error(first)
	}
	settlements := []*pb.Settlement{
		{
			Id: 1, Action: pb.Settlement_NACK, Leases: []string{"a"}, DelayS: proto.Float64(0), Error: "why",
			Final: true,
		},
		{Id: 2, Action: pb.Settlement_EXTEND, Leases: []string{"b"}, LeaseS: proto.Float64(60)},
	}
	close(requests)
	var sent []*pb.Settlement
	for request := range requests {
		sent = append(sent, request.GetSettlements()...)
	}
	if results != 2 || len(sent) != 2 || !proto.Equal(sent[0], settlements[0]) ||
		!proto.Equal(sent[1], settlements[1]) {
		t.Error(results, sent)
	}
}

func TestErrorIsTheBrokersProblemOrTheConnections(t *testing.T) {
	problem, err := proto.Marshal(&pb.Problem{
		Status: 404, Code: "unknown_consumer", Detail: "No such consumer.", Field: "consumer",
		RetryAfterS: 1.5,
	})
	if err != nil {
		t.Fatal(err)
	}
	refusal := map[string]error{}
	transport := serving(t, func(stream receiving) error {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if request.GetSubscription().GetConsumer() == "problem" {
			stream.SetTrailer(metadata.Pairs("hookstation-problem-bin", string(problem)))
			return status.Error(codes.NotFound, "refused")
		}
		return refusal[request.GetSubscription().GetConsumer()]
	})
	receive := func(transport hookstation.StreamTransport, consumer string) *hookstation.Error {
		subscription := hookstation.Subscription{Channel: "orders", Consumer: consumer}
		_, err := newClient(t).OpenStream(context.Background(), transport, subscription, 1).Receive()
		var found *hookstation.Error
		if !errors.As(err, &found) {
			t.Fatal(err)
		}
		return found
	}

	found := receive(transport, "problem")
	if !errors.Is(found, hookstation.ErrNotFound) || found.Code != "unknown_consumer" ||
		found.Detail != "No such consumer." || found.Fields["consumer"] == "" ||
		found.RetryAfter != 1500*time.Millisecond {
		t.Error(found)
	}
	for code, kind := range map[codes.Code]error{
		codes.Unauthenticated: hookstation.ErrUnauthorized,
		codes.Unavailable:     hookstation.ErrConnection,
		codes.Unimplemented:   hookstation.ErrConnection,
	} {
		refusal[code.String()] = status.Error(code, "of a proxy")
		if found := receive(transport, code.String()); !errors.Is(found, kind) {
			t.Error(code, found)
		}
	}
	if found := receive(connect(t, "grpc://127.0.0.1:1"), "nobody"); !errors.Is(found, hookstation.ErrConnection) {
		t.Error(found)
	}
}

// restOf is a broker's REST API that has no messages; it returns the paths of requests.
func restOf(t *testing.T) (url string, used func() []string) {
	t.Helper()
	var mutex sync.Mutex
	var paths []string
	rest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		mutex.Lock()
		defer mutex.Unlock()
		if strings.HasSuffix(r.URL.Path, "/receive") {
			paths = append(paths, "receive")
			io.WriteString(w, `{"messages": []}`)
			time.Sleep(50 * time.Millisecond)
			return
		}
		_, verb, _ := strings.Cut(r.URL.Path, "leases/")
		paths = append(paths, verb+" "+string(content))
		io.WriteString(w, `{"done": [], "failed": []}`)
	}))
	t.Cleanup(rest.Close)
	return rest.URL, func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		return append([]string{}, paths...)
	}
}

func TestWorkerSettlesOverRESTWhatABrokenStreamHasNotConfirmed(t *testing.T) {
	transport := serving(t, func(stream receiving) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		stream.Send(&pb.ReceiveResponse{Deliveries: []*pb.Delivery{{Id: "msg_1", Lease: "lease-1"}}})
		for {
			request, err := stream.Recv()
			if err != nil {
				return err
			}
			if len(request.GetSettlements()) > 0 {
				return status.Error(codes.Unavailable, "breaks before it is stored")
			}
		}
	})
	url, used := restOf(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	worker := &hookstation.Worker{
		Client: newClient(t, hookstation.WithURL(url)), Channel: "orders", Consumer: "billing",
		Streams: transport,
		Handler: func(context.Context, *hookstation.Delivery) error { return nil },
	}
	go func() {
		for len(used()) < 2 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()

	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}

	if found := used(); len(found) < 2 || found[0] != `ack {"leases":["lease-1"]}` || found[1] != "receive" {
		t.Error(found)
	}
}

func TestWorkerEndsTheStreamOfABrokerThatStops(t *testing.T) {
	settled := make(chan string, 10)
	transport := serving(t, func(stream receiving) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		stream.Send(&pb.ReceiveResponse{Deliveries: []*pb.Delivery{{Id: "msg_1", Lease: "lease-1"}}})
		for {
			request, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				close(settled)
				return nil
			}
			if err != nil {
				return err
			}
			// The settlement was under way when the broker began to stop.
			stream.Send(&pb.ReceiveResponse{Stopping: true})
			time.Sleep(100 * time.Millisecond)
			for _, one := range request.GetSettlements() {
				settled <- one.GetLeases()[0]
				stream.Send(&pb.ReceiveResponse{Results: []*pb.SettlementResult{{Id: one.GetId()}}})
			}
		}
	})
	url, used := restOf(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	go func() {
		for len(used()) == 0 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	worker := &hookstation.Worker{
		Client: newClient(t, hookstation.WithURL(url)), Channel: "orders", Consumer: "billing",
		Streams: transport,
		Handler: func(context.Context, *hookstation.Delivery) error { return nil },
	}

	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}

	var found []string
	for lease := range settled {
		found = append(found, lease)
	}
	if !reflect.DeepEqual(found, []string{"lease-1"}) {
		t.Error(found)
	}
	for _, one := range used() {
		if one != "receive" {
			t.Error("over REST:", one)
		}
	}
}
