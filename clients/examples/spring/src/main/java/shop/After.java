package shop;

import dev.hookstation.client.Event;
import dev.hookstation.client.RejectException;
import dev.hookstation.client.RetryException;
import dev.hookstation.client.WebhookHandler;
import dev.hookstation.client.servlet.WebhookServlet;
import java.time.Duration;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.web.servlet.ServletRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Profile;

/** Receives signed webhooks with the client's handler. */
@Configuration
@Profile("after")
class After {
    private final Orders orders;

    After(Orders orders) {
        this.orders = orders;
    }

    @Bean
    ServletRegistrationBean<WebhookServlet> hooks(
            @Value("${hookstation.secret}") String secret, HandledMessages handled) {
        WebhookHandler handler = WebhookHandler.builder()
                .secret(secret)
                .store(handled)
                .on("order.*", this::accept)
                .build();
        return new ServletRegistrationBean<>(new WebhookServlet(handler), "/hooks");
    }

    private void accept(Event event) {
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
        orders.store(order);
    }
}
