// Command consumer packs orders until it is stopped, and prints each packed order.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"shop.example/queues"
)

func main() {
	log.SetFlags(0)
	slips := cmp.Or(os.Getenv("SHOP_SLIPS"), "slips")
	if err := os.MkdirAll(slips, 0o700); err != nil {
		log.Fatal(err)
	}
	// On Ctrl-C or SIGTERM it packs the received orders, then receives no more.
	stopped, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := queues.Connect(stopped)
	if err != nil {
		log.Fatal(err)
	}
	orders := ""
	for stopped.Err() == nil {
		if orders == "" {
			orders, err = queues.OpenOrders(stopped, client)
		}
		if err == nil {
			err = work(client, orders, slips)
		}
		if err != nil {
			log.Printf("the queue does not answer: %v", err)
			time.Sleep(500 * time.Millisecond)
			err = nil
		}
	}
}

// work receives up to ten orders, and deletes each message after its order is packed.
func work(client *sqs.Client, orders, slips string) error {
	ctx := context.Background() // a signal does not interrupt it
	received, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &orders, MaxNumberOfMessages: 10, WaitTimeSeconds: 5,
	})
	if err != nil {
		return err
	}
	for _, message := range received.Messages {
		if err := pack(aws.ToString(message.Body), slips); err != nil {
			return err
		}
		_, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
			QueueUrl: &orders, ReceiptHandle: message.ReceiptHandle,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pack writes the packing slip of an order. A repeated order changes nothing.
func pack(body, slips string) error {
	var order queues.Order
	if err := json.Unmarshal([]byte(body), &order); err != nil {
		return err
	}
	slip := filepath.Join(slips, strconv.Itoa(order.Order)+".txt")
	if err := os.WriteFile(slip, []byte(order.Article+"\n"), 0o600); err != nil {
		return err
	}
	fmt.Printf("order %d is packed\n", order.Order)
	return nil
}
