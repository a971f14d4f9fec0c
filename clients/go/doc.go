// Package hookstation is the Go client of Hookstation, the webhook broker that stores every message
// before it says yes.
//
//	client, err := hookstation.New() // HOOKSTATION_URL and HOOKSTATION_KEY
//	if err != nil {
//		return err
//	}
//	_, err = client.Publish(ctx, "orders", hookstation.Outgoing{Body: order, EventType: "order.created"})
//
// A [Client] publishes, receives and manages channels, consumers and schedules. A [Worker] handles the
// messages of a pull consumer. A [WebhookHandler] receives signed webhooks in a net/http server;
// [Verify] checks one signature. The package needs the standard library alone.
//
// # Errors
//
// What the broker refuses is an [*Error] with the broker's code. [errors.Is] tells kinds apart:
//
//	if errors.Is(err, hookstation.ErrNotFound) { ... }
//
// # Retries
//
// A request that fails is repeated, after waits that double and vary by chance, and not before the
// time that the broker names in Retry-After. Each repeat of a publish carries the same
// Idempotency-Key, so that the broker stores the message once. Calls that would have a second effect
// are repeated only when the first one certainly had none.
package hookstation

// Version is the version of this client; requests name it in User-Agent.
const Version = "0.1.0"
