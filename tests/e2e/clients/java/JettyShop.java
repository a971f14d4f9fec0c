import dev.hookstation.client.MemoryStore;
import dev.hookstation.client.RejectException;
import dev.hookstation.client.RetryException;
import dev.hookstation.client.WebhookHandler;
import dev.hookstation.client.servlet.WebhookServlet;
import java.time.Duration;
import java.util.Map;
import org.sparkproject.jetty.ee10.servlet.ServletContextHandler;
import org.sparkproject.jetty.ee10.servlet.ServletHolder;
import org.sparkproject.jetty.server.Server;

/** The client's servlet in Jetty; prints what it handles. Needs PySpark's jars. */
final class JettyShop {
    public static void main(String[] arguments) throws Exception {
        WebhookHandler hooks = WebhookHandler.builder()
                .store(new MemoryStore())
                .on("order.*", event -> {
                    Object order = event.as(Map.class).get("id");
                    if (order.equals("reject")) {
                        throw new RejectException("no such order");
                    }
                    if (order.equals("retry") && event.attempt() == 1) {
                        throw new RetryException(Duration.ofSeconds(1), "not yet");
                    }
                    System.out.println(order + " " + event.attempt());
                })
                .build();
        Server server = new Server(Integer.parseInt(arguments[0]));
        ServletContextHandler context = new ServletContextHandler("/");
        context.addServlet(new ServletHolder(new WebhookServlet(hooks)), "/hooks");
        server.setHandler(context);
        server.start();
        server.join();
    }
}
