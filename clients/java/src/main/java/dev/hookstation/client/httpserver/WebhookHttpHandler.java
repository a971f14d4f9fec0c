package dev.hookstation.client.httpserver;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import dev.hookstation.client.WebhookHandler;
import java.io.IOException;
import java.util.Map;
import java.util.TreeMap;

/**
 * Connects a {@link WebhookHandler} to the JDK's HTTP server: {@code server.createContext("/hooks",
 * new WebhookHttpHandler(hooks))}. Give the server an executor: without one it handles one request
 * at a time.
 */
public final class WebhookHttpHandler implements HttpHandler {
    private final WebhookHandler hooks;

    /**
     * Creates an adapter.
     *
     * @param hooks the handler of the requests
     */
    public WebhookHttpHandler(WebhookHandler hooks) {
        this.hooks = hooks;
    }

    @Override
    public void handle(HttpExchange exchange) throws IOException {
        try (exchange) {
            Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            exchange.getRequestHeaders().forEach((name, values) -> headers.put(name, values.get(0)));
            WebhookHandler.Response response =
                    hooks.handle(exchange.getRequestMethod(), headers, exchange.getRequestBody());
            response.headers().forEach(exchange.getResponseHeaders()::set);
            int length = response.body().length;
            exchange.sendResponseHeaders(response.status(), length == 0 ? -1 : length);
            if (length > 0) {
                exchange.getResponseBody().write(response.body());
            }
        }
    }
}
