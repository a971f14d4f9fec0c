import dev.hookstation.client.Event;
import dev.hookstation.client.FileStore;
import dev.hookstation.client.RejectException;
import dev.hookstation.client.RetryException;
import dev.hookstation.client.WebhookHandler;
import dev.hookstation.client.httpserver.WebhookHttpHandler;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;

/**
 * The shop of {@code Before} with the client's handler.
 *
 * <p>SHOP_DB=shop.orders HOOKSTATION_SECRET=whsec_... java -cp classes:hookstation-client.jar After 8100
 */
final class After {
    private static Shop shop;

    record Order(long id, String article, int quantity) {}

    public static void main(String[] arguments) throws IOException {
        shop = new Shop(System.getenv("SHOP_DB"));
        WebhookHandler hooks = WebhookHandler.builder()
                .store(new FileStore(Path.of(System.getenv("SHOP_DB") + ".handled")))
                .on("order.*", After::accept)
                .build();
        shop.serve(Integer.parseInt(arguments[0]), new WebhookHttpHandler(hooks));
    }

    private static void accept(Event event) throws IOException {
        Order order = event.as(Order.class);
        if (order.id() == 0) {
            throw new RejectException("no order");
        }
        if (order.quantity() > 100) {
            throw new RejectException("more than the shop has");
        }
        if ("fresh bread".equals(order.article()) && event.attempt() == 1) {
            throw new RetryException(Duration.ofSeconds(1), "still in the oven");
        }
        shop.accept(order.id(), "");
    }
}
