// Package hookstation is the Go client of Hookstation, the webhook broker that stores every message
// before it acknowledges it.
//
//	client, err := hookstation.New() // HOOKSTATION_URL and HOOKSTATION_KEY
//	if err != nil {
//		return err
//	}
//	_, err = client.Publish(ctx, "orders", hookstation.Outgoing{Body: order, EventType: "order.created"})
//
// A [Client] publishes, receives and manages channels, consumers and schedules. A [Worker] handles
// the messages of a pull consumer. A [WebhookHandler] receives signed webhooks in a net/http
// server; [Verify] checks one signature. The package needs only the standard library.
//
// # Errors
//
// If the broker refuses a request, the client returns an [*Error] with the broker's code. Use
// [errors.Is] to distinguish kinds of errors:
//
//	if errors.Is(err, hookstation.ErrNotFound) { ... }
//
// # Retries
//
// The client retries failed requests with exponential backoff and jitter, and not before the time
// in the broker's Retry-After. Each retry of a publish has the same Idempotency-Key, so the broker
// stores the message once. The client retries calls that are not idempotent only if the failed one
// certainly had no effect.
package hookstation

// Version is the version of this client; requests name it in User-Agent.
const Version = "0.1.0"
