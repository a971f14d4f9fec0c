// The shop's queues. The environment determines the service.

import { CreateQueueCommand, GetQueueAttributesCommand, SQSClient } from "@aws-sdk/client-sqs";

export const sqs = new SQSClient();

/** Seconds in which a consumer must handle an order, or another one receives it. */
const VISIBILITY_S = process.env.VISIBILITY_S ?? "30";

/** Create the queue of orders; after 20 receives a message goes to the dead-letter queue. */
export async function openOrders() {
  const name = process.env.QUEUE ?? "shop-orders";
  const failed = await create(`${name}-failed`);
  const asked = { QueueUrl: failed, AttributeNames: ["QueueArn"] };
  const { Attributes } = await sqs.send(new GetQueueAttributesCommand(asked));
  const redrive = { deadLetterTargetArn: Attributes.QueueArn, maxReceiveCount: 20 };
  return create(name, { VisibilityTimeout: VISIBILITY_S, RedrivePolicy: JSON.stringify(redrive) });
}

async function create(QueueName, Attributes = {}) {
  return (await sqs.send(new CreateQueueCommand({ QueueName, Attributes }))).QueueUrl;
}
