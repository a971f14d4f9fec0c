// Package queues has the shop's queues. The environment determines the service.
package queues

import (
	"cmp"
	"context"
	"encoding/json"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Order is the body of a message.
type Order struct {
	Order   int    `json:"order"`
	Article string `json:"article"`
}

// Connect makes a client.
func Connect(ctx context.Context) (*sqs.Client, error) {
	settings, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	return sqs.NewFromConfig(settings), nil
}

// OpenOrders creates the queue of orders and returns its URL; after 20 receives a message goes to
// the dead-letter queue. A consumer must handle an order within VISIBILITY_S seconds, or another
// one receives it.
func OpenOrders(ctx context.Context, client *sqs.Client) (string, error) {
	name := cmp.Or(os.Getenv("QUEUE"), "shop-orders")
	failed, err := create(ctx, client, name+"-failed", nil)
	if err != nil {
		return "", err
	}
	arn := types.QueueAttributeNameQueueArn
	found, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &failed, AttributeNames: []types.QueueAttributeName{arn},
	})
	if err != nil {
		return "", err
	}
	redrive, err := json.Marshal(map[string]any{
		"deadLetterTargetArn": found.Attributes[string(arn)], "maxReceiveCount": 20,
	})
	if err != nil {
		return "", err
	}
	return create(ctx, client, name, map[string]string{
		"VisibilityTimeout": cmp.Or(os.Getenv("VISIBILITY_S"), "30"),
		"RedrivePolicy":     string(redrive),
	})
}

func create(ctx context.Context, client *sqs.Client, name string, attributes map[string]string) (string, error) {
	made, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err != nil {
		return "", err
	}
	return aws.ToString(made.QueueUrl), nil
}
