// Command before is a shop that receives signed webhooks without the client, with net/http.
//
//	SHOP_DB=shop.orders HOOKSTATION_SECRET=whsec_... go run ./before 127.0.0.1:8100
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"shop.example/shop"
)

func verify(header http.Header, body []byte) error {
	key, err := base64.StdEncoding.DecodeString(
		strings.TrimPrefix(os.Getenv("HOOKSTATION_SECRET"), "whsec_"),
	)
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return errors.New("too old or too new")
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", header.Get("webhook-id"), at)
	mac.Write(body)
	expected := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, given := range strings.Split(header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(expected), []byte(given)) {
			return nil
		}
	}
	return errors.New("no signature matches")
}

func receive(orders *shop.Shop) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, 1<<20))
		if err == nil {
			err = verify(request.Header, body)
		}
		if err != nil {
			http.Error(response, err.Error(), http.StatusUnauthorized)
			return
		}
		reject := func(detail string) {
			response.Header().Set("Hookstation-Retry", "never")
			http.Error(response, detail, http.StatusUnprocessableEntity)
		}
		message := request.Header.Get("webhook-id")
		if orders.IsHandled(message) {
			response.WriteHeader(http.StatusNoContent)
			return
		}
		var order shop.Order
		if json.Unmarshal(body, &order) != nil || order.ID == 0 {
			reject("no order")
			return
		}
		if order.Quantity > 100 {
			reject("more than the shop has")
			return
		}
		if order.Article == "fresh bread" && request.Header.Get("Hookstation-Attempt") == "1" {
			response.Header().Set("Retry-After", "1")
			http.Error(response, "still in the oven", http.StatusConflict)
			return
		}
		if err := orders.Accept(order, message); err != nil {
			http.Error(response, "no disk", http.StatusInternalServerError)
			return
		}
		response.WriteHeader(http.StatusNoContent)
	}
}

func main() {
	orders, err := shop.Open(os.Getenv("SHOP_DB"))
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("GET /orders", orders)
	http.Handle("POST /hooks", receive(orders))
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
