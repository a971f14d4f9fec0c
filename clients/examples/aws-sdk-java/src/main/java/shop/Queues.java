package shop;

import java.util.Map;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;

/** The shop's queues. The environment determines the service. */
final class Queues {
  private Queues() {}

  /**
   * Create the queue of orders and return its URL; after 20 receives a message goes to the
   * dead-letter queue. A consumer must handle an order within VISIBILITY_S seconds, or another one
   * receives it.
   */
  static String openOrders(SqsClient sqs) {
    String name = variable("QUEUE", "shop-orders");
    String failed = create(sqs, name + "-failed", Map.of());
    String arn =
        sqs.getQueueAttributes(r -> r.queueUrl(failed).attributeNames(QueueAttributeName.QUEUE_ARN))
            .attributes()
            .get(QueueAttributeName.QUEUE_ARN);
    String redrive = "{\"deadLetterTargetArn\": \"%s\", \"maxReceiveCount\": 20}".formatted(arn);
    return create(
        sqs,
        name,
        Map.of(
            QueueAttributeName.VISIBILITY_TIMEOUT, variable("VISIBILITY_S", "30"),
            QueueAttributeName.REDRIVE_POLICY, redrive));
  }

  static String variable(String name, String otherwise) {
    return System.getenv().getOrDefault(name, otherwise);
  }

  private static String create(
      SqsClient sqs, String name, Map<QueueAttributeName, String> attributes) {
    return sqs.createQueue(r -> r.queueName(name).attributes(attributes)).queueUrl();
  }
}
