// Command producer places orders: `producer 1 20` places 1 to 20 and prints each stored number.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"shop.example/queues"
)

const pause = 20 * time.Millisecond

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: producer FIRST LAST")
	}
	first, err := strconv.Atoi(os.Args[1])
	check(err)
	last, err := strconv.Atoi(os.Args[2])
	check(err)
	ctx := context.Background()
	client, err := queues.Connect(ctx)
	check(err)
	orders, err := queues.OpenOrders(ctx, client)
	check(err)
	for number := first; number <= last; number++ {
		body, err := json.Marshal(queues.Order{Order: number, Article: "tea"})
		check(err)
		place(ctx, client, orders, number, string(body))
		fmt.Println(number)
		time.Sleep(pause)
	}
}

// place sends an order until it is stored. After an error it may be stored twice.
func place(ctx context.Context, client *sqs.Client, orders string, number int, body string) {
	message := &sqs.SendMessageInput{QueueUrl: &orders, MessageBody: aws.String(body)}
	for {
		_, err := client.SendMessage(ctx, message)
		if err == nil {
			return
		}
		log.Printf("order %d is sent again: %v", number, err)
		time.Sleep(500 * time.Millisecond)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
