package shop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.Message;

/** Pack orders until stopped, and print each packed order. */
public final class Consumer {
  private static volatile boolean isEnding;

  private Consumer() {}

  public static void main(String[] arguments) throws Exception {
    Path slips = Files.createDirectories(Path.of(Queues.variable("SHOP_SLIPS", "slips")));
    stopOnSignals(Thread.currentThread());
    try (SqsClient sqs = SqsClient.create()) {
      String orders = null;
      while (!isEnding) {
        try {
          orders = orders == null ? Queues.openOrders(sqs) : orders;
          work(sqs, orders, slips);
        } catch (SdkException error) {
          System.err.println("the queue does not answer: " + error.getMessage());
          Thread.sleep(500);
        }
      }
    }
  }

  /** Receive up to ten orders; delete each message after its order is packed. */
  private static void work(SqsClient sqs, String orders, Path slips) throws IOException {
    var received =
        sqs.receiveMessage(r -> r.queueUrl(orders).maxNumberOfMessages(10).waitTimeSeconds(5));
    for (Message message : received.messages()) {
      pack(Order.read(message.body()), slips);
      sqs.deleteMessage(r -> r.queueUrl(orders).receiptHandle(message.receiptHandle()));
    }
  }

  /** Write the packing slip of an order. A repeated order changes nothing. */
  private static void pack(Order order, Path slips) throws IOException {
    Files.writeString(slips.resolve(order.order() + ".txt"), order.article() + "\n");
    System.out.println("order " + order.order() + " is packed");
  }

  /** Stop on Ctrl-C or SIGTERM: the main thread packs the received orders, then ends. */
  private static void stopOnSignals(Thread main) {
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      isEnding = true;
      try {
        main.join();
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
      }
    }));
  }
}
