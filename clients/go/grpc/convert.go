package hookstationgrpc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	hookstation "hookstation.dev/client"
	pb "hookstation.dev/client/grpc/internal/hookstationpb"
)

// The trailing metadata of a refused call has the broker's problem by this name.
const problemKey = "hookstation-problem-bin"

var actions = map[hookstation.Action]pb.Settlement_Action{
	hookstation.ActionAck:     pb.Settlement_ACK,
	hookstation.ActionNack:    pb.Settlement_NACK,
	hookstation.ActionRelease: pb.Settlement_RELEASE,
	hookstation.ActionExtend:  pb.Settlement_EXTEND,
}

// HTTP statuses of refusals that do not come from the broker itself, but for example from a proxy.
// Any other error is one of the connection.
var statuses = map[codes.Code]int{
	codes.Unauthenticated:   http.StatusUnauthorized,
	codes.PermissionDenied:  http.StatusForbidden,
	codes.NotFound:          http.StatusNotFound,
	codes.InvalidArgument:   http.StatusUnprocessableEntity,
	codes.ResourceExhausted: http.StatusTooManyRequests,
}

func requestOf(request hookstation.StreamRequest) *pb.ReceiveRequest {
	made := &pb.ReceiveRequest{Credits: uint32(request.Credits)}
	if from := request.Subscription; from != nil {
		made.Subscription = &pb.Subscription{
			Channel:  from.Channel,
			Consumer: from.Consumer,
			WorkerId: from.WorkerID,
			Sticky:   from.Sticky,
			Resume:   from.Resume,
			AutoAck:  from.AutoAck,
		}
		if from.Lease != 0 {
			made.Subscription.LeaseS = seconds(from.Lease)
		}
	}
	for _, from := range request.Settlements {
		settlement := &pb.Settlement{
			Id:     from.ID,
			Action: actions[from.Action],
			Leases: from.Leases,
			Error:  from.Error,
			Final:  from.Final,
		}
		if from.Delay != nil {
			settlement.DelayS = seconds(*from.Delay)
		}
		if from.Lease != 0 {
			settlement.LeaseS = seconds(from.Lease)
		}
		made.Settlements = append(made.Settlements, settlement)
	}
	return made
}

// seconds returns whole seconds, rounded up as in the REST API: a message is never delivered early.
func seconds(duration time.Duration) *float64 {
	return proto.Float64(math.Ceil(duration.Seconds()))
}

func responseOf(response *pb.ReceiveResponse) hookstation.StreamResponse {
	made := hookstation.StreamResponse{Stopping: response.GetStopping()}
	for _, delivery := range response.GetDeliveries() {
		made.Deliveries = append(made.Deliveries, deliveryOf(delivery))
	}
	for _, result := range response.GetResults() {
		failed := map[string]string{}
		for _, one := range result.GetFailed() {
			failed[one.GetLease()] = one.GetError()
		}
		made.Results = append(made.Results, hookstation.SettlementResult{
			Settlement: hookstation.Settlement{ID: result.GetId()}, Failed: failed,
		})
	}
	return made
}

func deliveryOf(found *pb.Delivery) *hookstation.Delivery {
	delivery := &hookstation.Delivery{
		ID:          found.GetId(),
		DeliveryID:  found.GetDeliveryId(),
		Lease:       found.GetLease(),
		Attempt:     int(found.GetAttempt()),
		MaxAttempts: int(found.GetMaxAttempts()),
		EventType:   found.GetEventType(),
		Priority:    int(found.GetPriority()),
		OrderingKey: found.GetOrderingKey(),
		Replay:      found.GetReplay(),
		AcceptedAt:  found.GetAcceptedAt().AsTime(),
		ContentType: found.GetContentType(),
		Headers:     found.GetHeaders(),
		Body:        found.GetBody(),
		BodyURL:     found.GetBodyUrl(),
	}
	if found.GetLease() != "" {
		delivery.LeaseExpiresAt = found.GetLeaseExpiresAt().AsTime()
	}
	if delivery.Headers == nil {
		delivery.Headers = map[string]string{}
	}
	return delivery
}

// errorOf returns the error that a failed call stands for: the broker's problem, or the
// connection's. It returns io.EOF unchanged.
func errorOf(err error, trailer metadata.MD) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	for _, content := range trailer.Get(problemKey) {
		var problem pb.Problem
		if proto.Unmarshal([]byte(content), &problem) == nil {
			return errorOfProblem(&problem)
		}
	}
	failed := status.Convert(err)
	made := &hookstation.Error{
		Status: statuses[failed.Code()],
		Detail: fmt.Sprintf("gRPC: %s: %s", failed.Code(), failed.Message()),
		Fields: map[string]string{},
	}
	if made.Status == 0 {
		made.Code = "no_response"
	}
	return made
}

func errorOfProblem(problem *pb.Problem) *hookstation.Error {
	fields := map[string]string{}
	if problem.GetField() != "" {
		fields[problem.GetField()] = problem.GetDetail()
	}
	return &hookstation.Error{
		Code:       problem.GetCode(),
		Status:     int(problem.GetStatus()),
		Detail:     problem.GetDetail(),
		Fields:     fields,
		RetryAfter: time.Duration(problem.GetRetryAfterS() * float64(time.Second)),
	}
}
