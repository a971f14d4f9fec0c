package dev.hookstation.client;

import java.net.URI;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.function.Supplier;

/**
 * Calls the broker's REST API. Thread-safe.
 *
 * <pre>{@code
 * Hookstation hooks = Hookstation.fromEnvironment(); // HOOKSTATION_URL and HOOKSTATION_KEY
 * hooks.publish("orders", Outgoing.of(Map.of("id", 7)).eventType("order.created"));
 * }</pre>
 *
 * <p>The client retries failed requests with exponential backoff and jitter, and not before the
 * time in the broker's {@code Retry-After}. Each retry of a publish has the same idempotency key.
 * The client retries calls that are not idempotent only if the failed one certainly had no effect.
 * If retries do not help, it throws a {@link HookstationException}. An interrupted call throws
 * {@link HookstationException.ConnectionFailed} with the code {@code interrupted}.
 */
public final class Hookstation {
    /** The version of this client; requests name it in {@code User-Agent}. */
    public static final String VERSION = "0.1.0";

    private static final int MAX_LEASES = 100;
    private static final Duration LONG_POLL = Duration.ofSeconds(20);

    private final Transport transport;
    private final String key;
    private final String grpc;

    private Hookstation(Transport transport, String key, String grpc) {
        this.transport = transport;
        this.key = key;
        this.grpc = grpc;
    }

    /**
     * Creates a client with the settings of the environment.
     *
     * @return the client
     * @throws IllegalStateException if {@code HOOKSTATION_URL} or {@code HOOKSTATION_KEY} is not set
     */
    public static Hookstation fromEnvironment() {
        return builder().build();
    }

    /**
     * Creates a builder of a client; its defaults come from the environment.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds a client. */
    public static final class Builder {
        private String urls = System.getenv().getOrDefault("HOOKSTATION_URL", "");
        private String key = System.getenv().getOrDefault("HOOKSTATION_KEY", "");
        private String grpc = System.getenv().getOrDefault("HOOKSTATION_GRPC_URL", "");
        private Duration timeout = Duration.ofSeconds(30);
        private Duration connectTimeout = Duration.ofSeconds(10);
        private int retries = 6;
        private HttpClient http;
        private Clock clock = Clock.systemUTC();

        private Builder() {}

        /**
         * Sets the broker's address in place of {@code HOOKSTATION_URL}.
         *
         * @param value one or several addresses, which are tried in turn while one is unavailable
         * @return this builder
         */
        public Builder url(String... value) {
            urls = String.join(",", value);
            return this;
        }

        /**
         * Sets the API key in place of {@code HOOKSTATION_KEY}.
         *
         * @param value the key
         * @return this builder
         */
        public Builder key(String value) {
            key = value;
            return this;
        }

        /**
         * Sets the address of the broker's gRPC server in place of {@code HOOKSTATION_GRPC_URL}.
         * Each {@link Worker} then receives over one stream, if {@code hookstation-client-grpc} is on
         * the class path.
         *
         * @param value {@code grpc://host:port}, or {@code grpcs://host:port} for TLS; "" is none
         * @return this builder
         */
        public Builder grpc(String value) {
            grpc = value;
            return this;
        }

        /**
         * Sets the timeout of one try of a request. A long poll adds its own wait.
         *
         * @param value the time, by default 30 seconds
         * @return this builder
         */
        public Builder timeout(Duration value) {
            timeout = value;
            return this;
        }

        /**
         * Sets the maximum number of retries of a request. With several addresses, each retry tries
         * all of them.
         *
         * @param value the number, by default 6; 0 disables retries
         * @return this builder
         */
        public Builder retries(int value) {
            retries = value;
            return this;
        }

        /**
         * Sets the HTTP client, for example for certificates or proxies.
         *
         * @param value a client that does not follow redirects
         * @return this builder
         */
        public Builder http(HttpClient value) {
            http = value;
            return this;
        }

        /**
         * Sets the clock, for tests.
         *
         * @param value the clock
         * @return this builder
         */
        public Builder clock(Clock value) {
            clock = value;
            return this;
        }

        /**
         * Creates the client. It does not call the broker.
         *
         * @return the client
         * @throws IllegalStateException if address or key is missing
         * @throws IllegalArgumentException if an address is not an http or https URL
         */
        public Hookstation build() {
            List<String> addresses = Arrays.stream(urls.split(","))
                    .map(url -> url.strip().replaceAll("/+$", ""))
                    .filter(url -> !url.isEmpty())
                    .toList();
            if (addresses.isEmpty()) {
                throw new IllegalStateException("Pass the broker's address, or set HOOKSTATION_URL.");
            }
            for (String address : addresses) {
                URI uri = URI.create(address);
                if (uri.getHost() == null || !List.of("http", "https").contains(uri.getScheme())) {
                    throw new IllegalArgumentException(address + " is not an http or https address");
                }
            }
            if (key.isEmpty()) {
                throw new IllegalStateException("Pass the key, or set HOOKSTATION_KEY.");
            }
            HttpClient sender = http != null
                    ? http
                    : HttpClient.newBuilder()
                            .version(HttpClient.Version.HTTP_1_1)
                            .connectTimeout(connectTimeout)
                            // A redirect would send the key to an address that is not configured.
                            .followRedirects(HttpClient.Redirect.NEVER)
                            .build();
            return new Hookstation(
                    new Transport(addresses, key, timeout, retries, sender, clock), key, grpc);
        }
    }

    // -- Publish -----------------------------------------------------------------------------------

    /**
     * Publishes one message. When it returns, the broker has stored the message.
     *
     * @param channel the channel
     * @param message the message
     * @return the message that the broker stored now or before
     */
    public Message publish(String channel, Outgoing message) {
        Map<String, String> headers = message.asHeaders();
        if (!headers.values().stream().allMatch(Hookstation::isAscii)) {
            // HTTP servers treat non-ASCII bytes in headers differently. JSON has no such problem.
            BatchResult result = publishBatch(channel, List.of(message)).get(0);
            if (result.error().isPresent()) {
                throw result.error().get();
            }
            return result.message().orElseThrow();
        }
        Call call = new Call("POST", Call.pathOf("channels", channel, "messages"));
        call.headers.putAll(headers);
        call.body = message.content();
        return Message.of(resource(call));
    }

    /**
     * Publishes up to 1,000 messages and 16 MiB in one request. The broker stores all valid
     * messages in one transaction.
     *
     * @param channel the channel
     * @param messages the messages
     * @return a result for each, in the same order
     */
    public List<BatchResult> publishBatch(String channel, List<Outgoing> messages) {
        Call call = new Call("POST", Call.pathOf("channels", channel, "messages", "batch"))
                .json(messages.stream().map(Outgoing::asItem).toList());
        return resource(call).list("items").stream().map(BatchResult::of).toList();
    }

    private static boolean isAscii(String text) {
        return text.chars().allMatch(c -> c < 0x80);
    }

    // -- Messages ----------------------------------------------------------------------------------

    /**
     * A message with its deliveries.
     *
     * @param id its id
     * @return the message
     */
    public Resource message(String id) {
        return resource(Call.get("messages", id));
    }

    /**
     * The exact bytes of a message's body.
     *
     * @param id the message's id
     * @return the bytes
     */
    public byte[] body(String id) {
        return send(Call.get("messages", id, "body"));
    }

    /**
     * The messages of a channel, newest first.
     *
     * @param channel the channel
     * @param filter selects messages or deliveries
     * @return the messages, read page by page
     */
    public Pages messages(String channel, Filter filter) {
        return pages(() -> filter.applyTo(Call.get("channels", channel, "messages")));
    }

    /**
     * Changes the due time or priority of a waiting message.
     *
     * @param id the message's id
     * @param move the changes
     * @return the message
     * @throws HookstationException.Conflict while a delivery of it is in flight, or if it does not
     *     have the version of the move
     */
    public Resource move(String id, Move move) {
        Call call = new Call("PATCH", Call.pathOf("messages", id)).json(move.asFields());
        return resource(call.ifMatch(move.version()));
    }

    /**
     * Cancels the queued deliveries of a message. Idempotent.
     *
     * @param id the message's id
     * @return the message
     */
    public Resource cancel(String id) {
        return cancel(id, "");
    }

    /**
     * Cancels the queued deliveries of a message. Idempotent.
     *
     * @param id the message's id
     * @param reason for the audit log
     * @return the message
     */
    public Resource cancel(String id, String reason) {
        return resource(new Call("DELETE", Call.pathOf("messages", id)).query("reason", reason));
    }

    // -- Channels and consumers --------------------------------------------------------------------

    /**
     * Creates a channel or replaces its settings. Idempotent: call it when a service starts.
     *
     * @param channel the channel
     * @param settings fields of docs/api.md, "Channels"
     * @return the channel
     */
    public Resource createChannel(String channel, Map<String, ?> settings) {
        return resource(new Call("PUT", Call.pathOf("channels", channel)).json(settings));
    }

    /**
     * Registers a consumer or replaces its settings. Idempotent: call it when a service starts.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param settings fields of docs/api.md, "Consumers", such as {@code url}, {@code event_types}
     *     and {@code retry}. A consumer without a {@code url} is a pull consumer.
     * @return the consumer; only the call that creates it returns the signing secret, {@code
     *     secret}
     */
    public Resource register(String channel, String consumer, Map<String, ?> settings) {
        Map<String, Object> said = new LinkedHashMap<>(settings);
        if (!said.containsKey("url")) {
            said.putIfAbsent("mode", "pull");
        }
        return resource(new Call("PUT", Call.pathOf("channels", channel, "consumers", consumer)).json(said));
    }

    /**
     * The deliveries of a consumer, newest first.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param filter selects messages or deliveries
     * @return the deliveries, read page by page
     */
    public Pages deliveries(String channel, String consumer, Filter filter) {
        return pages(() ->
                filter.applyTo(Call.get("channels", channel, "consumers", consumer, "deliveries")));
    }

    /**
     * The dead letters of a consumer, newest first.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param filter selects messages or deliveries
     * @return the deliveries, read page by page
     */
    public Pages deadLetters(String channel, String consumer, Filter filter) {
        return pages(() ->
                filter.applyTo(Call.get("channels", channel, "consumers", consumer, "dead-letters")));
    }

    /**
     * Sends a finished delivery again now, with a new budget of attempts. The client retries the
     * call only if it certainly had no effect.
     *
     * @param id the delivery's id
     * @param reason for the audit log, may be empty
     * @return the delivery
     */
    public Resource replayDelivery(String id, String reason) {
        Map<String, String> said = reason.isEmpty() ? Map.of() : Map.of("reason", reason);
        return resource(new Call("POST", Call.pathOf("deliveries", id, "replay")).json(said).once());
    }

    /**
     * The schedules of a channel.
     *
     * @param channel the channel
     * @return the schedules
     */
    public Schedules schedules(String channel) {
        return new Schedules(this, channel);
    }

    /**
     * Makes any other call of the API. The client retries a {@code POST} only if it certainly had
     * no effect.
     *
     * @param method such as {@code GET}
     * @param path below {@code /api/v1}, such as {@code /replays}
     * @param body sent as JSON, null for none
     * @return the response, empty if it has no body
     */
    public Resource call(String method, String path, Object body) {
        Call call = new Call(method, "/api/v1" + path);
        call.isOnce = method.equals("POST");
        if (body != null) {
            call.json(body);
        }
        byte[] content = send(call);
        return content.length == 0 ? new Resource(Map.of()) : read(content);
    }

    // -- Pull --------------------------------------------------------------------------------------

    /**
     * Receives messages of a pull consumer, in one call.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param options such as the number of messages and the lease
     * @return the messages, may be empty
     */
    public List<Delivery> receiveBatch(String channel, String consumer, ReceiveOptions options) {
        Call call = new Call("POST", Call.pathOf("channels", channel, "consumers", consumer, "receive"))
                .json(options.asFields());
        call.wait = options.waitFor();
        List<Resource> messages = resource(call).list("messages");
        List<Delivery> received = new ArrayList<>();
        try {
            for (Resource message : messages) {
                received.add(new Delivery(this, message));
            }
        } catch (HookstationException error) {
            giveBack(messages);
            throw error;
        }
        return received;
    }

    /** Releases messages that the caller does not get. */
    private void giveBack(List<Resource> messages) {
        String[] leases = messages.stream()
                .map(message -> message.text("lease"))
                .filter(lease -> !lease.isEmpty())
                .toArray(String[]::new);
        if (leases.length > 0) {
            try {
                release(Duration.ZERO, leases);
            } catch (HookstationException ignored) {
                // They are delivered again when their leases end.
            }
        }
    }

    /**
     * Iterates endlessly over the messages of a pull consumer; the iterator waits while there are
     * none. Settle each message before you take the next one.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param options such as the number of messages per call and the lease; the default wait is 20
     *     seconds
     * @return the messages
     */
    public Iterable<Delivery> receive(String channel, String consumer, ReceiveOptions options) {
        ReceiveOptions waiting = options.waitFor().isZero() ? options.waitFor(LONG_POLL) : options;
        return () -> new Iterator<>() {
            private ReceiveOptions next = waiting;
            private Iterator<Delivery> batch = List.<Delivery>of().iterator();

            @Override
            public boolean hasNext() {
                while (!batch.hasNext()) {
                    batch = receiveBatch(channel, consumer, next).iterator();
                    next = waiting.resume(false);
                }
                return true;
            }

            @Override
            public Delivery next() {
                if (!hasNext()) {
                    throw new NoSuchElementException();
                }
                return batch.next();
            }
        };
    }

    /**
     * Acknowledges up to 100 messages.
     *
     * @param leases their leases
     * @return the leases that were settled, and the others
     */
    public Settled ack(String... leases) {
        return settle("ack", new LinkedHashMap<>(), leases);
    }

    /**
     * Reports failed attempts of up to 100 messages.
     *
     * @param nack how they failed
     * @param leases their leases
     * @return the leases that were settled, and the others
     */
    public Settled nack(Nack nack, String... leases) {
        return settle("nack", nack.asFields(), leases);
    }

    /**
     * Extends up to 100 leases.
     *
     * @param lease the time from now until they end, in whole seconds
     * @param leases the leases
     * @return the leases that were extended, and the others
     */
    public Settled extend(Duration lease, String... leases) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("lease_s", Call.seconds(lease));
        return settle("extend", said, leases);
    }

    /**
     * Returns up to 100 messages without counting a failure.
     *
     * @param delay the time until they are due again, in whole seconds; zero is at once
     * @param leases their leases
     * @return the leases that were settled, and the others
     */
    public Settled release(Duration delay, String... leases) {
        Map<String, Object> said = new LinkedHashMap<>();
        if (!delay.isZero()) {
            said.put("delay_s", Call.seconds(delay));
        }
        return settle("release", said, leases);
    }

    private Settled settle(String verb, Map<String, Object> said, String... leases) {
        if (leases.length > MAX_LEASES) {
            throw new IllegalArgumentException(
                    leases.length + " leases in one call; the limit is " + MAX_LEASES + ".");
        }
        said.put("leases", leases);
        return Settled.of(resource(new Call("POST", Call.pathOf("leases", verb)).json(said)));
    }

    // -- Helpers -----------------------------------------------------------------------------------

    String key() {
        return key;
    }

    /** The address of the broker's gRPC server, or "". */
    String grpc() {
        return grpc;
    }

    byte[] send(Call call) {
        return transport.send(call);
    }

    Resource resource(Call call) {
        return read(send(call));
    }

    Pages pages(Supplier<Call> list) {
        return new Pages(cursor -> resource(list.get().query("cursor", cursor)));
    }

    private static Resource read(byte[] content) {
        return Resource.of(Json.read(new String(content, StandardCharsets.UTF_8)));
    }
}
