// Command after is the shop of command before with the client's handler.
//
//	SHOP_DB=shop.orders HOOKSTATION_SECRET=whsec_... go run ./after 127.0.0.1:8100
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"time"

	hookstation "hookstation.dev/client"
	"shop.example/shop"
)

func main() {
	orders, err := shop.Open(os.Getenv("SHOP_DB"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := hookstation.OpenFileStore(os.Getenv("SHOP_DB") + ".handled")
	if err != nil {
		log.Fatal(err)
	}
	hooks := &hookstation.WebhookHandler{Store: store}
	hooks.On("order.*", func(_ context.Context, event *hookstation.Event) error {
		var order shop.Order
		if err := event.JSON(&order); err != nil {
			return err
		}
		switch {
		case order.ID == 0:
			return hookstation.Reject("no order")
		case order.Quantity > 100:
			return hookstation.Reject("more than the shop has")
		case order.Article == "fresh bread" && event.Attempt == 1:
			return hookstation.Retry(time.Second, "still in the oven")
		}
		return orders.Accept(order, "")
	})
	http.Handle("GET /orders", orders)
	http.Handle("POST /hooks", hooks)
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
