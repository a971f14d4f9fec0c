// Command worker handles the messages of a consumer over a stream, for tests that kill it and for
// measurements. It appends the id of each message that it has handled to a file.
//
//	worker -channel orders -handled FILE [-resume] [-rest]
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	hookstation "hookstation.dev/client"
	hookstationgrpc "hookstation.dev/client/grpc"
)

func main() {
	channel := flag.String("channel", "", "the channel")
	consumer := flag.String("consumer", "all", "the consumer")
	handled := flag.String("handled", "", "the file that gets the ids")
	name := flag.String("name", "", "the worker's id")
	concurrency := flag.Int("concurrency", 8, "messages at a time")
	lease := flag.Duration("lease", 30*time.Second, "duration of a lease")
	pause := flag.Duration("pause", 0, "how long a message takes")
	resume := flag.Bool("resume", false, "receive first what the killed worker held")
	rest := flag.Bool("rest", false, "use only the REST API")
	flag.Parse()

	client, err := hookstation.New(hookstation.WithTimeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.OpenFile(*handled, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	worker := &hookstation.Worker{
		Client:      client,
		Channel:     *channel,
		Consumer:    *consumer,
		Concurrency: *concurrency,
		Lease:       *lease,
		Wait:        time.Second,
		WorkerID:    *name,
		Resume:      *resume,
		Handler: func(_ context.Context, delivery *hookstation.Delivery) error {
			time.Sleep(*pause)
			_, err := file.WriteString(delivery.ID + "\n")
			return err
		},
	}
	if !*rest {
		transport, err := hookstationgrpc.New()
		if err != nil {
			log.Fatal(err)
		}
		worker.Streams = transport
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
