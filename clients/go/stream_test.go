package hookstation_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	hookstation "hookstation.dev/client"
)

// pipe is a transport whose other end is the test.
type pipe struct {
	key       string
	refusal   error
	requests  chan hookstation.StreamRequest
	responses chan hookstation.StreamResponse
	// Closed when the client has closed its side.
	closed chan struct{}
}

func newPipe() *pipe {
	return &pipe{
		requests:  make(chan hookstation.StreamRequest),
		responses: make(chan hookstation.StreamResponse),
		closed:    make(chan struct{}),
	}
}

func (p *pipe) Open(_ context.Context, key string) (hookstation.StreamCall, error) {
	p.key = key
	return p, p.refusal
}

func (p *pipe) Send(request hookstation.StreamRequest) error {
	p.requests <- request
	return nil
}

func (p *pipe) CloseSend() error {
	close(p.closed)
	return nil
}

func (p *pipe) Receive() (hookstation.StreamResponse, error) {
	response, isOpen := <-p.responses
	if !isOpen {
		return response, io.EOF
	}
	return response, nil
}

func openStream(t *testing.T, p *pipe, credits int) *hookstation.Stream {
	t.Helper()
	client, err := hookstation.New(
		hookstation.WithURL("http://127.0.0.1:1"), hookstation.WithKey("hsk_test"),
	)
	if err != nil {
		t.Fatal(err)
	}
	subscription := hookstation.Subscription{Channel: "orders", Consumer: "billing"}
	return client.OpenStream(context.Background(), p, subscription, credits)
}

func leases(count int, prefix string) []string {
	made := make([]string, count)
	for i := range made {
		made[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return made
}

func TestStreamSendsTogetherWhatWasSaidMeanwhile(t *testing.T) {
	p := newPipe()
	stream := openStream(t, p, 3)
	// The first request waits until it is read.
	stream.Grant(1)
	stream.Settle(hookstation.Settlement{Action: hookstation.ActionAck, Leases: []string{"a"}})
	stream.Grant(2)
	stream.Settle(hookstation.Settlement{Action: hookstation.ActionAck, Leases: []string{"b"}})
	nack := hookstation.Settlement{
		Action: hookstation.ActionNack, Leases: []string{"c"}, Delay: hookstation.Ptr(time.Second),
		Error: strings.Repeat("x", 400),
	}
	stream.Settle(nack)
	nack.Leases, nack.Delay = []string{"d"}, hookstation.Ptr(2*time.Second)
	stream.Settle(nack)
	stream.Close()

	first, second := <-p.requests, <-p.requests

	if p.key != "hsk_test" || first.Subscription.Consumer != "billing" || first.Credits != 3 {
		t.Error(p.key, first)
	}
	if second.Subscription != nil || second.Credits != 3 || len(second.Settlements) != 3 {
		t.Fatal(second)
	}
	for i, one := range second.Settlements {
		sent := fmt.Sprintf("%d%s%v%d", one.ID, one.Action, one.Leases, len(one.Error))
		if want := []string{"1ack[a b]0", "2nack[c]300", "3nack[d]300"}[i]; sent != want {
			t.Error(sent, "in place of", want)
		}
	}
	<-p.closed
}

func TestStreamSendsNoMoreThanAThousandLeasesAtATime(t *testing.T) {
	p := newPipe()
	stream := openStream(t, p, 0)
	said := leases(2500, "l")
	stream.Settle(hookstation.Settlement{Action: hookstation.ActionExtend, Leases: said})
	stream.Close()
	<-p.requests // the first one

	var sent []string
	for range 3 {
		request := <-p.requests
		count := 0
		for _, one := range request.Settlements {
			count += len(one.Leases)
			sent = append(sent, one.Leases...)
		}
		if count > 1000 {
			t.Error(count, "leases")
		}
	}

	if !reflect.DeepEqual(sent, said) {
		t.Error(len(sent), "leases in another order")
	}
	<-p.closed
}

func TestStreamKnowsWhatTheBrokerHasNotConfirmed(t *testing.T) {
	p := newPipe()
	stream := openStream(t, p, 0)
	<-p.requests
	for _, action := range []hookstation.Action{hookstation.ActionAck, hookstation.ActionRelease} {
		stream.Settle(hookstation.Settlement{Action: action, Leases: leases(2, string(action))})
		<-p.requests
	}
	if stream.IsAccepted() {
		t.Error("accepted before the first response")
	}
	go func() {
		failed := map[string]string{"ack1": "expired"}
		p.responses <- hookstation.StreamResponse{Results: []hookstation.SettlementResult{
			{Settlement: hookstation.Settlement{ID: 1}, Failed: failed},
		}}
		close(p.responses)
	}()

	response, err := stream.Receive()
	if err != nil || !stream.IsAccepted() {
		t.Fatal(err)
	}
	result := response.Results[0]
	if result.Settlement.Action != hookstation.ActionAck || result.Failed["ack1"] != "expired" ||
		!reflect.DeepEqual(result.Settlement.Leases, []string{"ack0", "ack1"}) {
		t.Error(result)
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	// Not sent any more.
	stream.Settle(hookstation.Settlement{Action: hookstation.ActionAck, Leases: []string{"late"}})

	left := stream.Unconfirmed()

	if len(left) != 2 || left[0].Action != hookstation.ActionRelease || left[1].Leases[0] != "late" {
		t.Error(left)
	}
}

func TestStreamThatIsRefusedReturnsTheError(t *testing.T) {
	p := newPipe()
	p.refusal = &hookstation.Error{Status: 403, Code: "missing_scope"}
	stream := openStream(t, p, 1)

	_, err := stream.Receive()

	if !errors.Is(err, hookstation.ErrForbidden) || stream.IsAccepted() {
		t.Error(err)
	}
	stream.Close() // does not wait for anybody
}

func TestKindOfAnErrorIsThatOfItsStatus(t *testing.T) {
	for status, kind := range map[int]error{
		0:   hookstation.ErrConnection,
		200: hookstation.ErrLeaseLost,
		404: hookstation.ErrNotFound,
		422: hookstation.ErrBadRequest,
		507: hookstation.ErrUnavailable,
	} {
		err := &hookstation.Error{Status: status}
		if !errors.Is(err, kind) || errors.Is(err, hookstation.ErrRateLimited) {
			t.Error(status, kind)
		}
	}
}
