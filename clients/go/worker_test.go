package hookstation_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	hookstation "hookstation.dev/client"
	"hookstation.dev/client/internal/workertest"
)

func TestWorker(t *testing.T) { workertest.Run(t, nil) }

func TestReceiveIteratesUntilTheContextEnds(t *testing.T) {
	client, channel := workertest.Broker(t)
	ids := workertest.Send(t, client, channel, "one", "two")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got []string

	for delivery, err := range client.Receive(ctx, channel, "packing", hookstation.ReceiveOptions{Max: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := delivery.Ack(ctx); err != nil {
			t.Fatal(err)
		}
		if err := delivery.Extend(ctx, time.Minute); !errors.Is(err, hookstation.ErrLeaseLost) {
			t.Error("extended after the end:", err)
		}
		if got = append(got, delivery.ID); len(got) == 2 {
			cancel()
		}
	}

	if strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Error(got, ids)
	}
}

func TestConditionalMoveNeedsTheVersion(t *testing.T) {
	client, channel := workertest.Broker(t)
	ctx := context.Background()
	sent, err := client.Publish(ctx, channel, hookstation.Outgoing{DeliverIn: time.Hour, Body: "x"})
	if err != nil {
		t.Fatal(err)
	}
	message, err := client.Message(ctx, sent.ID)
	if err != nil {
		t.Fatal(err)
	}
	version := message.Int("version")

	for _, expected := range []error{nil, hookstation.ErrConflict} {
		_, err := client.Move(ctx, sent.ID, hookstation.MoveOptions{
			DeliverIn: hookstation.Ptr(2 * time.Hour), Version: &version,
		})
		if !errors.Is(err, expected) {
			t.Error(err)
		}
	}
}
