// Package hookstationgrpc lets workers of hookstation.dev/client receive and settle messages over a
// stream to the broker's gRPC server.
//
//	streams, err := hookstationgrpc.New() // HOOKSTATION_GRPC_URL
//	if err != nil {
//		return err
//	}
//	defer streams.Close()
//	worker := &hookstation.Worker{Client: client, Streams: streams, ...}
//
// Without an address, and while the server cannot be reached, the worker uses the REST API.
// [hookstation.Client.OpenStream] opens a stream without a worker.
package hookstationgrpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	hookstation "hookstation.dev/client"
	pb "hookstation.dev/client/grpc/internal/hookstationpb"
)

const (
	// Wait before a connection is tried again. A worker tries a stream again after ten seconds.
	maxBackoff     = 5 * time.Second
	connectTimeout = 10 * time.Second
	// Notice a broker whose host is gone.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// Transport is a connection to a gRPC server, for any number of streams.
type Transport struct {
	url        string
	tls        *tls.Config
	options    []grpc.DialOption
	connection *grpc.ClientConn
}

var _ hookstation.StreamTransport = (*Transport)(nil)

// Option changes a setting of [New].
type Option func(*Transport)

// WithURL sets the server's address in place of HOOKSTATION_GRPC_URL: grpc://host:port, or
// grpcs://host:port for TLS.
func WithURL(url string) Option { return func(t *Transport) { t.url = url } }

// WithTLS sets the configuration of TLS for grpcs addresses, for example for certificates of your
// own.
func WithTLS(config *tls.Config) Option { return func(t *Transport) { t.tls = config } }

// WithDialOptions adds options of google.golang.org/grpc.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(t *Transport) { t.options = append(t.options, options...) }
}

// New returns a transport. The address comes from HOOKSTATION_GRPC_URL unless an option sets it. If
// there is none, workers use the REST API. New returns an error if the address is not a gRPC URL. It
// does not connect.
func New(options ...Option) (*Transport, error) {
	transport := &Transport{url: os.Getenv("HOOKSTATION_GRPC_URL")}
	for _, option := range options {
		option(transport)
	}
	if transport.url == "" {
		return transport, nil
	}
	target, secured, err := parse(transport.url)
	if err != nil {
		return nil, err
	}
	security := insecure.NewCredentials()
	if secured {
		security = credentials.NewTLS(transport.tls)
	}
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = maxBackoff
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithUserAgent("hookstation-go/" + hookstation.Version),
		grpc.WithDisableServiceConfig(), // else it is looked up in DNS
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: reconnect, MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout,
		}),
		// Bodies may be as large as the broker allows.
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	}
	transport.connection, err = grpc.NewClient(target, append(dial, transport.options...)...)
	if err != nil {
		return nil, fmt.Errorf("hookstationgrpc: %w", err)
	}
	return transport, nil
}

// Close closes the connection and ends its streams.
func (t *Transport) Close() error {
	if t.connection == nil {
		return nil
	}
	return t.connection.Close()
}

// Open begins a stream; see [hookstation.StreamTransport]. Use [hookstation.Client.OpenStream].
func (t *Transport) Open(ctx context.Context, key string) (hookstation.StreamCall, error) {
	if t.connection == nil {
		return nil, hookstation.ErrNoStream
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	opened, err := pb.NewHookstationClient(t.connection).Receive(ctx)
	if err != nil {
		return nil, errorOf(err, nil)
	}
	return call{opened}, nil
}

// parse returns the host and port of an address, and whether it wants TLS.
func parse(address string) (target string, secured bool, err error) {
	parsed, err := url.Parse(address)
	if err != nil || (parsed.Scheme != "grpc" && parsed.Scheme != "grpcs") || parsed.Host == "" ||
		strings.Trim(parsed.Path, "/") != "" {
		return "", false, fmt.Errorf(
			"hookstationgrpc: %q is not grpc://host:port or grpcs://host:port", address,
		)
	}
	return parsed.Host, parsed.Scheme == "grpcs", nil
}

// call is a stream of google.golang.org/grpc.
type call struct {
	grpc.BidiStreamingClient[pb.ReceiveRequest, pb.ReceiveResponse]
}

func (c call) Send(request hookstation.StreamRequest) error {
	return c.BidiStreamingClient.Send(requestOf(request))
}

func (c call) Receive() (hookstation.StreamResponse, error) {
	response, err := c.Recv()
	if err != nil {
		return hookstation.StreamResponse{}, errorOf(err, c.Trailer())
	}
	return responseOf(response), nil
}
