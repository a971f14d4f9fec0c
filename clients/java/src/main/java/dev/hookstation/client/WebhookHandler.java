package dev.hookstation.client;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Supplier;

/**
 * Receives signed webhooks with any web framework: it verifies each request, recognizes repeats,
 * and calls the first handler whose pattern matches the event type.
 *
 * <pre>{@code
 * WebhookHandler hooks = WebhookHandler.builder()
 *         .store(new FileStore(Path.of("handled")))
 *         .on("order.*", event -> accept(event.as(Order.class)))
 *         .build();
 * }</pre>
 *
 * <p>When a handler returns, the message counts as delivered. After a {@link RetryException} the
 * broker sends it again later, after a {@link RejectException} never, after any other exception as
 * the consumer's retry policy says. {@code dev.hookstation.client.httpserver.WebhookHttpHandler}
 * connects it to the JDK's HTTP server, {@code dev.hookstation.client.servlet.WebhookServlet} to a
 * servlet container.
 */
public final class WebhookHandler {
    private static final System.Logger LOGGER = System.getLogger(WebhookHandler.class.getName());
    private static final Map<String, String> NEVER = Map.of("Hookstation-Retry", "never");

    private final Supplier<List<String>> secrets;
    private final Duration tolerance;
    private final Store store;
    private final int maxBodyBytes;
    private final boolean handleTests;
    private final List<Route> routes;

    private WebhookHandler(Builder builder) {
        secrets = builder.secrets;
        tolerance = builder.tolerance;
        store = builder.store;
        maxBodyBytes = builder.maxBodyBytes;
        handleTests = builder.handleTests;
        routes = List.copyOf(builder.routes);
    }

    private record Route(String pattern, EventHandler handler) {}

    /** Handles one event. */
    @FunctionalInterface
    public interface EventHandler {
        /**
         * Handles an event.
         *
         * @param event the message
         * @throws Exception {@link RetryException}, {@link RejectException}, or anything else for a
         *     failed attempt
         */
        void handle(Event event) throws Exception;
    }

    /**
     * A response to the broker.
     *
     * @param status the HTTP status
     * @param headers the headers
     * @param body the body, empty for 204
     */
    public record Response(int status, Map<String, String> headers, byte[] body) {
        static Response problem(int status, String detail, Map<String, String> headers) {
            Map<String, String> all = new TreeMap<>(headers);
            all.put("Content-Type", "application/json");
            byte[] body = Json.write(Map.of("detail", detail)).getBytes(StandardCharsets.UTF_8);
            return new Response(status, all, body);
        }
    }

    /**
     * Creates a builder of a handler.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds a handler. */
    public static final class Builder {
        private final List<Route> routes = new ArrayList<>();
        private Supplier<List<String>> secrets = Builder::fromEnvironment;
        private Duration tolerance = Webhooks.TOLERANCE;
        private Store store;
        private int maxBodyBytes = 16 * 1024 * 1024;
        private boolean handleTests;

        private Builder() {}

        /**
         * Sets the consumer's signing secrets in place of {@code HOOKSTATION_SECRET}.
         *
         * @param values one secret, or several during a rotation
         * @return this builder
         */
        public Builder secret(String... values) {
            List<String> fixed = List.of(values);
            return secrets(() -> fixed);
        }

        /**
         * Sets a function that returns the signing secrets, called for each request.
         *
         * @param value the function
         * @return this builder
         */
        public Builder secrets(Supplier<List<String>> value) {
            secrets = value;
            return this;
        }

        /**
         * Sets the largest difference of a timestamp.
         *
         * @param value the time, by default five minutes
         * @return this builder
         */
        public Builder tolerance(Duration value) {
            tolerance = value;
            return this;
        }

        /**
         * Sets the store of handled messages, so that a repeat is acknowledged but not handled
         * again.
         *
         * @param value the store; without one every delivery is handled
         * @return this builder
         */
        public Builder store(Store value) {
            store = value;
            return this;
        }

        /**
         * Sets the size above which a request is refused.
         *
         * @param value bytes, by default 16 MiB
         * @return this builder
         */
        public Builder maxBodyBytes(int value) {
            maxBodyBytes = value;
            return this;
        }

        /**
         * Sets whether handlers receive test samples of the broker.
         *
         * @param value if false, samples are acknowledged without a handler
         * @return this builder
         */
        public Builder handleTests(boolean value) {
            handleTests = value;
            return this;
        }

        /**
         * Registers a handler for event types. The first registered handler that matches is called.
         * If none matches, the message is rejected.
         *
         * @param pattern a name, a pattern such as {@code order.*}, or {@code *}
         * @param handler the handler
         * @return this builder
         */
        public Builder on(String pattern, EventHandler handler) {
            routes.add(new Route(pattern, handler));
            return this;
        }

        /**
         * Creates the handler.
         *
         * @return the handler
         */
        public WebhookHandler build() {
            return new WebhookHandler(this);
        }

        private static List<String> fromEnvironment() {
            String secret = System.getenv("HOOKSTATION_SECRET");
            if (secret == null || secret.isEmpty()) {
                throw new IllegalStateException("Pass the signing secret, or set HOOKSTATION_SECRET.");
            }
            return List.of(secret);
        }
    }

    /**
     * Handles a request whose body is a stream. Reads it only if the request has a {@code
     * Content-Length} within the limit.
     *
     * @param method the HTTP method
     * @param headers those of the request, in any letter case
     * @param body the body
     * @return the response
     * @throws IOException if the body is incomplete
     */
    public Response handle(String method, Map<String, String> headers, InputStream body)
            throws IOException {
        if (!method.equals("POST")) {
            return Response.problem(405, "Webhooks are POST requests.", Map.of("Allow", "POST"));
        }
        Map<String, String> found = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        found.putAll(headers);
        String length = found.getOrDefault("Content-Length", "");
        if (!length.matches("[0-9]{1,18}")) {
            // The broker always sends Content-Length. Without it a body could be endless.
            return Response.problem(411, "Content-Length is required.", Map.of());
        }
        if (Long.parseLong(length) > maxBodyBytes) {
            return Response.problem(413, "The body is larger than " + maxBodyBytes + " bytes.", NEVER);
        }
        return handle(headers, body.readAllBytes());
    }

    /**
     * Handles a request.
     *
     * @param headers those of the request, in any letter case
     * @param body the exact bytes of the body
     * @return the response
     */
    public Response handle(Map<String, String> headers, byte[] body) {
        try {
            Webhooks.verify(secrets.get(), headers, body, tolerance, Clock.systemUTC());
            dispatch(new Event(headers, body));
            return new Response(204, Map.of(), new byte[0]);
        } catch (SignatureException error) {
            LOGGER.log(System.Logger.Level.WARNING, "webhook refused: " + error.getMessage());
            return Response.problem(401, error.getMessage(), Map.of());
        } catch (RejectException error) {
            LOGGER.log(System.Logger.Level.WARNING, "message rejected: " + error.getMessage());
            return Response.problem(422, String.valueOf(error.getMessage()), NEVER);
        } catch (RetryException error) {
            // After a 503 the broker pauses the whole consumer, after a 409 only this delivery.
            Map<String, String> wait =
                    Map.of("Retry-After", Long.toString(Call.seconds(error.after())));
            return Response.problem(
                    error.isPause() ? 503 : 409, String.valueOf(error.getMessage()), wait);
        } catch (Exception error) {
            // The detail may be confidential.
            LOGGER.log(System.Logger.Level.ERROR, "handler failed", error);
            return Response.problem(500, error.getClass().getSimpleName(), Map.of());
        }
    }

    private void dispatch(Event event) throws Exception {
        if (event.isTest() && !handleTests) {
            return;
        }
        for (Route route : routes) {
            if (matches(route.pattern, event.eventType())) {
                handleOnce(event, route.handler);
                return;
            }
        }
        throw new RejectException("No handler for the event type \"" + event.eventType() + "\".");
    }

    private void handleOnce(Event event, EventHandler handler) throws Exception {
        if (store == null) {
            handler.handle(event);
            return;
        }
        Optional<Store.Claim> claim = store.claim(event.id());
        if (claim.isEmpty()) {
            return;
        }
        try {
            handler.handle(event);
        } catch (Throwable error) { // remove the claim after an Error, too
            claim.get().forget();
            throw error;
        }
        claim.get().done();
    }

    /** Whether a pattern matches an event type, by the broker's rule. */
    static boolean matches(String pattern, String eventType) {
        if (pattern.endsWith(".*")) {
            return eventType.startsWith(pattern.substring(0, pattern.length() - 1));
        }
        return pattern.equals("*") || (pattern.equals(eventType) && !eventType.isEmpty());
    }
}
