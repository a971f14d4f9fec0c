package shop;

import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.services.sqs.SqsClient;

/** Place orders: {@code Producer 1 20} places 1 to 20 and prints each stored number. */
public final class Producer {
  private static final int PAUSE_MS = 20;

  private Producer() {}

  public static void main(String[] arguments) throws Exception {
    int first = Integer.parseInt(arguments[0]);
    int last = Integer.parseInt(arguments[1]);
    try (SqsClient sqs = SqsClient.create()) {
      String orders = Queues.openOrders(sqs);
      for (int number = first; number <= last; number++) {
        place(sqs, orders, new Order(number, "tea"));
        System.out.println(number);
        Thread.sleep(PAUSE_MS);
      }
    }
  }

  /** Send an order until it is stored. After an error it may be stored twice. */
  private static void place(SqsClient sqs, String orders, Order order) throws Exception {
    String body = order.write();
    while (true) {
      try {
        sqs.sendMessage(r -> r.queueUrl(orders).messageBody(body));
        return;
      } catch (SdkException error) {
        System.err.println("order " + order.order() + " is sent again: " + error.getMessage());
        Thread.sleep(500);
      }
    }
  }
}
