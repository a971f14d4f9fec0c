package shop;

import dev.hookstation.client.Event;
import dev.hookstation.client.FileStore;
import dev.hookstation.client.RejectException;
import dev.hookstation.client.RetryException;
import dev.hookstation.client.WebhookHandler;
import dev.hookstation.client.servlet.WebhookServlet;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;

/** The shop of {@link Before} with the client's handler. */
final class After {
    private static Shop shop;

    public static void main(String[] arguments) throws Exception {
        String path = System.getenv("SHOP_DB");
        shop = new Shop(path);
        WebhookHandler hooks = WebhookHandler.builder()
                .store(new FileStore(Path.of(path + ".handled")))
                .on("order.*", After::accept)
                .build();
        shop.serve(Integer.parseInt(arguments[0]), new WebhookServlet(hooks));
    }

    private static void accept(Event event) throws SQLException {
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
        try (Connection database = shop.connect()) {
            Shop.store(database, order);
        }
    }
}
