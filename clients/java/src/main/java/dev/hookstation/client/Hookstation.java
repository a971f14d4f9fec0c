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
 * Calls the broker's REST API. It may be used by several threads.
 *
 * <pre>{@code
 * Hookstation hooks = Hookstation.fromEnvironment(); // HOOKSTATION_URL and HOOKSTATION_KEY
 * hooks.publish("orders", Outgoing.of(Map.of("id", 7)).eventType("order.created"));
 * }</pre>
 *
 * <p>A request that fails is repeated, after waits that double and vary by chance, and not before the
 * time that the broker names in {@code Retry-After}; each repeat of a publish carries the same
 * idempotency key. Calls that would have a second effect are repeated only when the first one
 * certainly had none. What does not help in the end is thrown as a {@link HookstationException}.
 * An interrupted call throws {@link HookstationException.ConnectionFailed} with the code
 * {@code interrupted}.
 */
public final class Hookstation {
    /** The version of this client; requests name it in {@code User-Agent}. */
    public static final String VERSION = "0.1.0";

    private static final int MAX_LEASES = 100;
    private static final Duration LONG_POLL = Duration.ofSeconds(20);

    private final Transport transport;

    private Hookstation(Transport transport) {
        this.transport = transport;
    }

    /**
     * A client of the broker that the environment names.
     *
     * @return the client
     * @throws IllegalStateException if {@code HOOKSTATION_URL} or {@code HOOKSTATION_KEY} is not set
     */
    public static Hookstation fromEnvironment() {
        return builder().build();
    }

    /**
     * A builder of a client; what it is not told comes from the environment.
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
        private Duration timeout = Duration.ofSeconds(30);
        private Duration connectTimeout = Duration.ofSeconds(10);
        private int retries = 6;
        private HttpClient http;
        private Clock clock = Clock.systemUTC();

        private Builder() {}

        /**
         * Sets the broker's address in place of {@code HOOKSTATION_URL}.
         *
         * @param value one or several addresses, which are tried one after the other while one is away
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
         * Sets how long one try of a request may take. A long poll may take longer by its own wait.
         *
         * @param value the time, 30 seconds unless set
         * @return this builder
         */
        public Builder timeout(Duration value) {
            timeout = value;
            return this;
        }

        /**
         * Sets how often a failed request is repeated; with several addresses each repeat tries all.
         *
         * @param value the number, 6 unless set; 0 turns it off
         * @return this builder
         */
        public Builder retries(int value) {
            retries = value;
            return this;
        }

        /**
         * Sets what sends, for certificates, proxies and the like.
         *
         * @param value a client that follows no redirects
         * @return this builder
         */
        public Builder http(HttpClient value) {
            http = value;
            return this;
        }

        /**
         * Sets what tells the time, for tests.
         *
         * @param value the clock
         * @return this builder
         */
        public Builder clock(Clock value) {
            clock = value;
            return this;
        }

        /**
         * Makes the client. The broker is not called.
         *
         * @return the client
         * @throws IllegalStateException if address or key is missing
         * @throws IllegalArgumentException if an address is no http or https address
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
                    throw new IllegalArgumentException(address + " is no http or https address");
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
                            // A redirect would carry the key to an address that nobody configured.
                            .followRedirects(HttpClient.Redirect.NEVER)
                            .build();
            return new Hookstation(new Transport(addresses, key, timeout, retries, sender, clock));
        }
    }

    // -- Publish -----------------------------------------------------------------------------------

    /**
     * Publishes one message. When it returns, the broker has stored the message.
     *
     * @param channel the channel
     * @param message the message
     * @return what the broker stored, or had stored before
     */
    public Message publish(String channel, Outgoing message) {
        Map<String, String> headers = message.asHeaders();
        if (!headers.values().stream().allMatch(Hookstation::isAscii)) {
            // HTTP servers differ on bytes beyond ASCII in headers. JSON has no such limit.
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
     * Publishes up to 1,000 messages and 16 MiB in one request. All that are valid are stored in one
     * transaction.
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
     * @param filter chooses some
     * @return the messages, read page by page
     */
    public Pages messages(String channel, Filter filter) {
        return pages(() -> filter.applyTo(Call.get("channels", channel, "messages")));
    }

    /**
     * Moves a waiting message to another time or priority.
     *
     * @param id the message's id
     * @param move what changes
     * @return the message
     * @throws HookstationException.Conflict while a delivery of it is in flight, or if it has another
     *     version than the move says
     */
    public Resource move(String id, Move move) {
        Call call = new Call("PATCH", Call.pathOf("messages", id)).json(move.asFields());
        return resource(call.ifMatch(move.version()));
    }

    /**
     * Cancels what is still queued of a message. Twice is harmless.
     *
     * @param id the message's id
     * @return the message
     */
    public Resource cancel(String id) {
        return cancel(id, "");
    }

    /**
     * Cancels what is still queued of a message.
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
     * Creates a channel or replaces its settings; safe at each start of a service.
     *
     * @param channel the channel
     * @param settings fields of docs/api.md, "Channels"
     * @return the channel
     */
    public Resource createChannel(String channel, Map<String, ?> settings) {
        return resource(new Call("PUT", Call.pathOf("channels", channel)).json(settings));
    }

    /**
     * Registers a consumer or replaces its settings; safe at each start of a service.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param settings fields of docs/api.md, "Consumers", such as {@code url}, {@code event_types} and
     *     {@code retry}. A consumer without a {@code url} pulls.
     * @return the consumer; its signing secret, {@code secret}, once: when it is new
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
     * @param filter chooses some
     * @return the deliveries, read page by page
     */
    public Pages deliveries(String channel, String consumer, Filter filter) {
        return pages(() ->
                filter.applyTo(Call.get("channels", channel, "consumers", consumer, "deliveries")));
    }

    /**
     * The dead deliveries of a consumer, newest first.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param filter chooses some
     * @return the deliveries, read page by page
     */
    public Pages deadLetters(String channel, String consumer, Filter filter) {
        return pages(() ->
                filter.applyTo(Call.get("channels", channel, "consumers", consumer, "dead-letters")));
    }

    /**
     * Sends a finished delivery again, now and with all its attempts. Repeated only where the first
     * call certainly had no effect.
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
     * Makes any other call of the API. A {@code POST} is repeated only where the first one certainly
     * had no effect.
     *
     * @param method such as {@code GET}
     * @param path behind {@code /api/v1}, such as {@code /replays}
     * @param body sent as JSON, null for none
     * @return the answer, empty where the broker answers without a body
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
     * @param options how many, and for how long
     * @return the messages, perhaps none
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

    /** Lets messages that nobody gets come again at once. */
    private void giveBack(List<Resource> messages) {
        String[] leases = messages.stream()
                .map(message -> message.text("lease"))
                .filter(lease -> !lease.isEmpty())
                .toArray(String[]::new);
        if (leases.length > 0) {
            try {
                release(Duration.ZERO, leases);
            } catch (HookstationException ignored) {
                // They come again when their leases end.
            }
        }
    }

    /**
     * Iterates over the messages of a pull consumer, without end: the iterator waits while there is
     * none. Settle each message before the next one.
     *
     * @param channel the channel
     * @param consumer the consumer
     * @param options how many one call asks for, and the lease; without a wait each call waits for 20
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
     * @return which were settled
     */
    public Settled ack(String... leases) {
        return settle("ack", new LinkedHashMap<>(), leases);
    }

    /**
     * Reports failed attempts of up to 100 messages.
     *
     * @param nack how they failed
     * @param leases their leases
     * @return which were settled
     */
    public Settled nack(Nack nack, String... leases) {
        return settle("nack", nack.asFields(), leases);
    }

    /**
     * Extends up to 100 leases.
     *
     * @param lease when they end from now, in whole seconds
     * @param leases which
     * @return which were extended
     */
    public Settled extend(Duration lease, String... leases) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("lease_s", Call.seconds(lease));
        return settle("extend", said, leases);
    }

    /**
     * Gives up to 100 messages back, uncharged.
     *
     * @param delay when they come again, in whole seconds; zero is at once
     * @param leases their leases
     * @return which were settled
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
                    leases.length + " leases in one call; " + MAX_LEASES + " are allowed.");
        }
        said.put("leases", leases);
        return Settled.of(resource(new Call("POST", Call.pathOf("leases", verb)).json(said)));
    }

    // -- What all of them share --------------------------------------------------------------------

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
