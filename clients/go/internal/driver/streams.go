package driver

import (
	"errors"
	"io"
	"time"

	hookstation "hookstation.dev/client"
)

// Time without a message after which a receive over a stream ends.
const quiet = 300 * time.Millisecond

const defaultMax = 10

// streams receives and settles over streams, each operation over one of its own.
type streams struct {
	transport hookstation.StreamTransport
	// Of the last receive that was not refused; nil before the first one.
	subscription *hookstation.Subscription
}

func (s *streams) operations() map[string]func(request) (any, error) {
	replaced := map[string]func(request) (any, error){
		"receive": func(r request) (any, error) { return received(s.receive(r)) },
	}
	for name, settlement := range map[string]func(request) hookstation.Settlement{
		"ack": func(r request) hookstation.Settlement {
			return hookstation.Settlement{Action: hookstation.ActionAck}
		},
		"nack": func(r request) hookstation.Settlement {
			return hookstation.Settlement{
				Action: hookstation.ActionNack, Delay: duration(r.Delay), Error: r.Error,
			}
		},
		"extend": func(r request) hookstation.Settlement {
			return hookstation.Settlement{Action: hookstation.ActionExtend, Lease: *duration(&r.Seconds)}
		},
		"release": func(r request) hookstation.Settlement {
			return hookstation.Settlement{Action: hookstation.ActionRelease, Delay: duration(r.Delay)}
		},
	} {
		overREST := operations[name]
		replaced[name] = func(r request) (any, error) {
			if s.subscription == nil { // another process received the message
				return overREST(r)
			}
			made := settlement(r)
			made.Leases = []string{r.lease()}
			return settled(s.settle(made))
		}
	}
	return replaced
}

func (s *streams) receive(r request) ([]*hookstation.Delivery, error) {
	lease, err := r.leaseTime()
	if err != nil {
		return nil, err
	}
	most := r.Max
	if most == 0 {
		most = defaultMax
	}
	subscription := hookstation.Subscription{
		Channel: r.Channel, Consumer: r.Consumer, Lease: lease, WorkerID: r.WorkerID, Resume: r.Resume,
	}
	stream := client.OpenStream(ctx, s.transport, subscription, most)
	parts := make(chan []*hookstation.Delivery)
	var failure error
	go func() {
		defer close(parts)
		for {
			response, err := stream.Receive()
			if err != nil {
				failure = err
				return
			}
			parts <- response.Deliveries
		}
	}()
	// The first response says that the stream is open.
	found, isOpen := <-parts
	patience := time.NewTimer(max(*duration(&r.Wait), quiet))
	for isWaiting := isOpen; isWaiting && len(found) < most; {
		select {
		case part, isOpen := <-parts:
			found = append(found, part...)
			isWaiting = isOpen
			if len(found) > 0 {
				patience.Reset(quiet)
			}
		case <-patience.C:
			isWaiting = false
		}
	}
	stream.Close()
	// The broker may have sent more before it saw that.
	for part := range parts {
		found = append(found, part...)
	}
	if !errors.Is(failure, io.EOF) {
		return nil, failure
	}
	s.subscription = &hookstation.Subscription{Channel: r.Channel, Consumer: r.Consumer}
	for _, delivery := range found {
		if delivery.BodyURL != "" {
			if delivery.Body, err = client.Body(ctx, delivery.ID); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func (s *streams) settle(settlement hookstation.Settlement) (hookstation.Settled, error) {
	stream := client.OpenStream(ctx, s.transport, *s.subscription, 0)
	stream.Settle(settlement)
	stream.Close()
	var result hookstation.Settled
	for {
		response, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return result, err
		}
		for _, one := range response.Results {
			result.Failed = one.Failed
		}
	}
	if len(stream.Unconfirmed()) > 0 {
		return result, errors.New("the stream ended before the settlement was confirmed")
	}
	return result, nil
}
