package dev.hookstation.client;

import static dev.hookstation.client.Checks.equal;
import static dev.hookstation.client.Checks.isTrue;
import static dev.hookstation.client.Checks.thrown;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import dev.hookstation.client.httpserver.WebhookHttpHandler;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/** Tests of the client without a broker; the JDK's HTTP server responds instead. */
public final class UnitTests {
    private static final String SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    private static final String OTHER_SECRET = "whsec_AAECAwQFBgcICQoLDA0ODw==";
    private static final String STORED = "{\"id\": \"msg_1\", \"duplicate\": false,"
            + " \"matched_consumers\": 1, \"due_at\": \"2026-11-21T08:08:08.383Z\", \"url\": \"u\"}";

    private UnitTests() {}

    public static void main(String[] arguments) {
        Checks.runAll(UnitTests.class);
    }

    /** The server's reaction to one request. */
    private interface Answer {
        void to(HttpExchange exchange) throws IOException;
    }

    private record Seen(String target, Map<String, String> headers, String body, long at) {}

    /** A server that sends configured responses, repeats the last one, and records requests. */
    private static final class Recorder implements AutoCloseable {
        final List<Seen> requests = Collections.synchronizedList(new ArrayList<>());
        final String url;
        private final HttpServer server;

        Recorder(Answer... answers) throws IOException {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
            server.setExecutor(Executors.newCachedThreadPool(run -> {
                Thread thread = new Thread(run);
                thread.setDaemon(true);
                return thread;
            }));
            server.createContext("/", exchange -> {
                Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
                exchange.getRequestHeaders().forEach((name, values) -> headers.put(name, values.get(0)));
                String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
                int number = Math.min(requests.size(), answers.length - 1);
                requests.add(new Seen(
                        exchange.getRequestURI().toString(), headers, body, System.nanoTime()));
                answers[number].to(exchange);
            });
            server.start();
            url = "http://127.0.0.1:" + server.getAddress().getPort();
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    private static Answer answer(int status, String body, String... headers) {
        return exchange -> {
            for (int i = 0; i < headers.length; i += 2) {
                exchange.getResponseHeaders().set(headers[i], headers[i + 1]);
            }
            byte[] content = body.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, content.length == 0 ? -1 : content.length);
            exchange.getResponseBody().write(content);
            exchange.close();
        };
    }

    /** Closes the connection without a response. */
    private static final Answer HANG_UP = HttpExchange::close;

    private static Hookstation.Builder builder(String... urls) {
        return Hookstation.builder().url(urls).key("hsk_test");
    }

    private static String deadUrl() throws IOException {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return "http://127.0.0.1:" + socket.getLocalPort();
        }
    }

    // -- Requests and retries ----------------------------------------------------------------------

    static void testRepeatsOfAPublishCarryTheSameKeyAndBody() throws IOException {
        try (Recorder server =
                new Recorder(HANG_UP, answer(500, ""), answer(503, ""), answer(202, STORED))) {
            equal("msg_1", builder(server.url).build().publish("orders", Outgoing.of("x")).id());
            equal(4, server.requests.size());
            for (Seen request : server.requests) {
                equal(server.requests.get(0).headers.get("Idempotency-Key"),
                        request.headers.get("Idempotency-Key"));
                equal("x", request.body);
            }
            isTrue(server.requests.get(0).headers.get("Idempotency-Key") != null, "no key");
        }
    }

    static void testTwoMessagesHaveDifferentKeysAndOneMessageOne() throws IOException {
        try (Recorder server = new Recorder(answer(202, STORED))) {
            Hookstation hooks = builder(server.url).build();
            Outgoing first = Outgoing.of("x");
            hooks.publish("orders", first);
            hooks.publish("orders", first);
            hooks.publish("orders", Outgoing.of("x"));
            List<String> keys =
                    server.requests.stream().map(it -> it.headers.get("Idempotency-Key")).toList();
            equal(keys.get(0), keys.get(1));
            isTrue(!keys.get(0).equals(keys.get(2)), keys);
        }
    }

    static void testRetryAfterDelaysTheRetry() throws IOException {
        try (Recorder server =
                new Recorder(answer(429, "", "Retry-After", "1"), answer(202, STORED))) {
            builder(server.url).build().publish("orders", Outgoing.of("x"));
            long waited = server.requests.get(1).at - server.requests.get(0).at;
            isTrue(waited >= 1_000_000_000L, waited);
        }
    }

    static void testLongRetryAfterThrowsTheError() throws IOException {
        try (Recorder server = new Recorder(answer(429, "{\"code\": \"x\"}", "Retry-After", "61"))) {
            HookstationException error = thrown(
                    HookstationException.RateLimited.class,
                    () -> builder(server.url).build().message("msg_1"));
            equal(Duration.ofSeconds(61), error.retryAfter());
            equal(1, server.requests.size());
        }
    }

    static void testNonIdempotentCallsAreRetriedOnlyWithoutEffect() throws IOException {
        // A proxy sends a 503 without a code, and may have forwarded the request before.
        for (Answer first : List.of(HANG_UP, answer(500, ""), answer(503, ""), answer(504, ""))) {
            try (Recorder server = new Recorder(first, answer(200, "{}"))) {
                thrown(
                        HookstationException.class,
                        () -> builder(server.url, server.url).build().replayDelivery("dlv_1", ""));
                equal(1, server.requests.size());
            }
        }
        String code = "{\"code\": \"busy\"}";
        Answer[] answers = {answer(429, code), answer(503, code), answer(507, code), answer(200, "{}")};
        try (Recorder server = new Recorder(answers)) {
            builder(server.url).build().replayDelivery("dlv_1", "");
            equal(4, server.requests.size());
        }
    }

    static void testClientUsesTheNextAddressAndKeepsIt() throws IOException {
        try (Recorder reset = new Recorder(HANG_UP);
                Recorder busy = new Recorder(answer(503, "")); Recorder proxy = new Recorder(answer(502, ""));
                Recorder slow = new Recorder(answer(504, ""))) {
            for (String away : List.of(deadUrl(), reset.url, busy.url, proxy.url, slow.url)) {
                try (Recorder server = new Recorder(answer(202, STORED))) {
                    Hookstation hooks = builder(away + " , " + server.url + "/").build();
                    hooks.publish("orders", Outgoing.of("x"));
                    hooks.publish("orders", Outgoing.of("y"));
                    equal(2, server.requests.size());
                }
            }
            for (Recorder left : List.of(reset, busy, proxy, slow)) {
                equal(1, left.requests.size());
            }
        }
    }

    static void testSilentAddressIsSkippedAfterTheTimeout() throws IOException {
        Answer silent = exchange -> {
            try {
                Thread.sleep(2_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        };
        Answer stuck = exchange -> {
            exchange.sendResponseHeaders(200, 100);
            exchange.getResponseBody().write('{');
            exchange.getResponseBody().flush();
            silent.to(exchange);
        };
        for (Answer first : List.of(silent, stuck)) {
            try (Recorder away = new Recorder(first); Recorder server = new Recorder(answer(202, STORED))) {
                builder(away.url, server.url)
                        .timeout(Duration.ofMillis(300))
                        .build()
                        .publish("orders", Outgoing.of("x"));
                equal(1, server.requests.size());
            }
        }
    }

    static void testRefusalIsFinalAtTheFirstAddress() throws IOException {
        try (Recorder first = new Recorder(answer(422, "")); Recorder second = new Recorder(answer(200, "{}"))) {
            thrown(
                    HookstationException.BadRequest.class,
                    () -> builder(first.url, second.url).build().message("msg_1"));
            equal(0, second.requests.size());
        }
    }

    static void testWithoutRetriesOneTryIsMade() throws IOException {
        try (Recorder server = new Recorder(answer(503, ""))) {
            thrown(
                    HookstationException.Unavailable.class,
                    () -> builder(server.url, server.url).retries(0).build().message("msg_1"));
            equal(1, server.requests.size());
        }
    }

    static void testFailedConnectionIsConnectionFailed() throws IOException {
        for (String url : List.of(deadUrl(), "http://nowhere.invalid")) {
            HookstationException error = thrown(
                    HookstationException.ConnectionFailed.class,
                    () -> builder(url).retries(0).build().replayDelivery("dlv_1", ""));
            equal("not_sent", error.code());
            equal(0, error.status());
            isTrue(error.getCause() instanceof IOException, error);
        }
    }

    static void testInterruptedCallEndsAtOnce() throws IOException {
        try (Recorder server = new Recorder(answer(503, "", "Retry-After", "30"))) {
            Thread.currentThread().interrupt();
            HookstationException error = thrown(
                    HookstationException.ConnectionFailed.class,
                    () -> builder(server.url).build().message("msg_1"));
            equal("interrupted", error.code());
            isTrue(Thread.interrupted(), "the mark is gone");
        }
    }

    static void testBatchWithAnUnfetchableBodyIsReleased() throws IOException {
        String messages = "{\"messages\": [{\"id\": \"1\", \"lease\": \"a\"},"
                + " {\"id\": \"2\", \"lease\": \"b\", \"body_url\": \"/x\"}]}";
        Answer done = answer(200, "{\"done\": [], \"failed\": []}");
        try (Recorder server = new Recorder(answer(200, messages), answer(404, ""), done)) {
            thrown(
                    HookstationException.NotFound.class,
                    () -> builder(server.url).build().receiveBatch("c", "all", ReceiveOptions.defaults()));
            equal("/api/v1/leases/release", server.requests.get(2).target());
            equal("{\"leases\":[\"a\",\"b\"]}", server.requests.get(2).body());
        }
    }

    static void testProblemBecomesAnErrorWithCodeAndFields() throws IOException {
        String problem = "{\"code\": \"invalid_fields\", \"detail\": \"Two faults.\", \"errors\": ["
                + "{\"field\": \"colour\", \"detail\": \"is unknown\"}, {\"field\": \"retry\"}]}";
        try (Recorder server = new Recorder(answer(422, problem))) {
            HookstationException error = thrown(
                    HookstationException.BadRequest.class,
                    () -> builder(server.url).build().createChannel("a/b c", Map.of()));
            equal("invalid_fields", error.code());
            equal(422, error.status());
            equal("Two faults.", error.detail());
            equal(Map.of("colour", "is unknown", "retry", ""), error.fields());
            equal("/api/v1/channels/a%2Fb%20c", server.requests.get(0).target);
        }
    }

    static void testProxyResponseIsAnError() throws IOException {
        Map<Integer, Class<? extends HookstationException>> kinds = Map.of(
                301, HookstationException.BadRequest.class,
                401, HookstationException.Unauthorized.class,
                403, HookstationException.Forbidden.class,
                404, HookstationException.NotFound.class,
                409, HookstationException.Conflict.class,
                412, HookstationException.Conflict.class,
                501, HookstationException.Unavailable.class);
        for (var kind : kinds.entrySet()) {
            try (Recorder server = new Recorder(answer(kind.getKey(), "<html>", "Location", "/x"))) {
                thrown(kind.getValue(), () -> builder(server.url).build().message("msg_1"));
                equal(1, server.requests.size());
            }
        }
    }

    static void testPublishSendsOptionsAsHeaders() throws IOException {
        try (Recorder server = new Recorder(answer(202, STORED))) {
            Message sent = builder(server.url).build().publish(
                    "orders",
                    Outgoing.of(Map.of("to", "Zoë"))
                            .eventType("order.created")
                            .id("order-7")
                            .orderingKey("customer-4")
                            .priority(0)
                            .deliverAt(Instant.parse("2030-01-01T08:00:00Z"))
                            .deliverIn(Duration.ofMillis(1500))
                            .header("X-Tenant", "blue"));
            equal(Instant.parse("2026-11-21T08:08:08.383Z"), sent.dueAt());
            Map<String, String> wanted = new HashMap<>();
            wanted.put("Authorization", "Bearer hsk_test");
            wanted.put("Content-Type", "application/json");
            wanted.put("Idempotency-Key", "order-7");
            wanted.put("Hookstation-Event-Type", "order.created");
            wanted.put("Hookstation-Ordering-Key", "customer-4");
            wanted.put("Hookstation-Priority", "0");
            wanted.put("Hookstation-Deliver-At", "2030-01-01T08:00:00Z");
            wanted.put("Hookstation-Delay", "1500");
            wanted.put("Hookstation-Header-X-Tenant", "blue");
            Seen request = server.requests.get(0);
            wanted.forEach((name, value) -> equal(value, request.headers.get(name)));
            equal("{\"to\":\"Zoë\"}", request.body);
        }
    }

    static void testNonAsciiTextIsSentInTheBody() throws IOException {
        String results = "{\"items\": [{\"status\": 202, " + STORED.substring(1) + "]}";
        try (Recorder server = new Recorder(answer(207, results))) {
            byte[] body = {(byte) 0xff};
            builder(server.url).build().publish("orders", Outgoing.of(body).orderingKey("Zürich"));
            String said = server.requests.get(0).body;
            isTrue(said.contains("\"ordering_key\":\"Zürich\""), said);
            isTrue(said.contains("\"body_base64\":\"/w==\""), said);
        }
    }

    static void testListReadsOnlyTheNeededPages() throws IOException {
        try (Recorder server = new Recorder(
                answer(200, "{\"items\": [{\"id\": \"a\"}, {\"id\": \"b\"}], \"next\": \"two\"}"),
                answer(200, "{\"items\": [], \"next\": \"three\"}"),
                answer(200, "{\"items\": [{\"id\": \"c\"}], \"next\": null}"))) {
            Pages list = builder(server.url).build().messages("orders", Filter.all().eventType("order.*"));
            var items = list.iterator();
            equal("a", items.next().text("id"));
            equal("b", items.next().text("id"));
            equal(1, server.requests.size());
            equal("c", items.next().text("id"));
            isTrue(!items.hasNext(), "more");
            equal("/api/v1/channels/orders/messages?event_type=order.%2A&cursor=three",
                    server.requests.get(2).target.replace("*", "%2A"));
        }
    }

    static void testWaitsDoubleUpToALimit() {
        HookstationException error =
                new HookstationException.ConnectionFailed("no_response", "", null);
        long[] bases = {200, 400, 800, 1600, 3200, 6400, 12800, 20000, 20000};
        for (int retry = 0; retry < bases.length; retry++) {
            for (int i = 0; i < 20; i++) {
                long wait = Transport.waitMillis(error, retry);
                isTrue(bases[retry] / 2 <= wait && wait < bases[retry], retry + ": " + wait);
            }
        }
    }

    static void testRetryAfterMayBeADate() {
        Clock clock = Clock.fixed(Instant.parse("2026-11-21T08:00:00Z"), ZoneOffset.UTC);
        Map<String, Duration> waits = new LinkedHashMap<>();
        waits.put("", Duration.ZERO);
        waits.put("soon", Duration.ZERO);
        waits.put("-3", Duration.ZERO);
        waits.put("1.5", Duration.ofMillis(1500));
        waits.put("Sat, 21 Nov 2026 08:00:30 GMT", Duration.ofSeconds(30));
        waits.put("Sat, 21 Nov 2026 07:00:30 GMT", Duration.ZERO);
        waits.forEach((text, wait) -> equal(wait, HookstationException.parseRetryAfter(text, clock)));
    }

    static void testBuilderNamesWhatIsMissing() {
        thrown(IllegalStateException.class, () -> builder("").build());
        thrown(IllegalStateException.class, () -> builder("http://a").key("").build());
        thrown(IllegalArgumentException.class, () -> builder("127.0.0.1:8000").build());
        thrown(IllegalArgumentException.class, () -> builder("ftp://a").build());
        thrown(IllegalArgumentException.class, () -> builder("http://a").build().ack(new String[101]));
    }

    static void testNackErrorIsTruncated() {
        Object said = Nack.because("🖨".repeat(301)).asFields().get("error");
        equal("🖨".repeat(300), said);
    }

    // -- JSON --------------------------------------------------------------------------------------

    private record Line(String article, int count) {}

    private record Order(long id, List<Line> lines, Map<String, BigDecimal> prices, boolean paid) {}

    static void testJsonIsReadAndWritten() {
        for (String text : List.of(
                "null", "true", "-0.5", "[]", "{}", "\"\"", "[1,[2,{\"a\":null}]]",
                "{\"Zoë\":\"\\\"\\\\\\n\\u0001 🚚\"}", "9223372036854775807", "1E+400")) {
            equal(text, Json.write(Json.read(text)));
        }
        equal(List.of("/\b\f\té", Map.of("a", 1L)), Json.read(" [ \"\\/\\b\\f\\t\\u00e9\" , {\"a\" : 1} ] "));
        equal(new BigInteger("9223372036854775808"), Json.read("9223372036854775808"));
        equal("\"\\ud800\"", Json.write(Json.read("\"\\ud800\"")));
    }

    static void testInvalidJsonIsRefused() {
        for (String text : List.of(
                "", "nul", "[1,]", "{\"a\"}", "{a:1}", "01", "1.", "+1", "\"", "\"\n\"", "\"\\x\"", "1 2",
                "\"\\u12\"", "[", "NaN", "1e", "'a'", "[".repeat(100_000), "1e99999999999")) {
            thrown(IllegalArgumentException.class, () -> Json.read(text));
        }
        thrown(IllegalArgumentException.class, () -> Json.write(Double.NaN));
        thrown(IllegalArgumentException.class, () -> Json.write(new Object()));
    }

    static void testRecordsAreObjects() {
        Order order = new Order(7, List.of(new Line("tea", 2)), Map.of("EUR", new BigDecimal("1.10")), true);
        String text = Json.write(order);
        equal("{\"id\":7,\"lines\":[{\"article\":\"tea\",\"count\":2}],\"prices\":{\"EUR\":1.10},"
                + "\"paid\":true}", text);
        equal(order, Json.read(text, Order.class));
        equal(new Order(0, null, null, false), Json.read("{\"more\": 1}", Order.class));
        for (String unfit : List.of(
                "[]", "{\"id\": \"7\"}", "{\"id\": 7.5}", "{\"lines\": [{\"count\": 3000000000}]}",
                "{\"paid\": 1}", "{\"id\": 9223372036854775808}")) {
            thrown(IllegalArgumentException.class, () -> Json.read(unfit, Order.class));
        }
        thrown(RejectException.class, () ->
                new Event(Map.of(), "[]".getBytes(StandardCharsets.UTF_8)).as(Order.class));
    }

    // -- Signatures --------------------------------------------------------------------------------

    private static Map<String, String> signed(String secret, Instant at, String body) {
        Map<String, String> headers = new TreeMap<>();
        headers.put("Webhook-Id", "msg_1");
        headers.put("Webhook-Timestamp", Long.toString(at.getEpochSecond()));
        headers.put("Webhook-Signature", Webhooks.sign(secret, "msg_1", at, bytes(body)));
        return headers;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** The test vector of the Standard Webhooks libraries. */
    static void testSignatureEqualsTheSpecification() {
        equal(
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                Webhooks.sign(
                        SECRET,
                        "msg_p5jXN8AQM9LWM0D4loKWxJek",
                        Instant.ofEpochSecond(1614265330),
                        bytes("{\"test\": 2432232314}")));
    }

    static void testVerifyAcceptsSignedWebhooks() throws SignatureException {
        Instant at = Instant.ofEpochSecond(1_700_000_000);
        Map<String, String> headers = signed(SECRET, at, "{}");
        headers.merge("Webhook-Signature", "v1,AAAA v1a,BBBB ", (old, more) -> more + old);
        List<String> secrets = List.of(OTHER_SECRET, SECRET);
        for (int off : new int[] {-300, 0, 300}) {
            Clock clock = Clock.fixed(at.plusSeconds(off), ZoneOffset.UTC);
            equal("msg_1", Webhooks.verify(secrets, headers, bytes("{}"), Webhooks.TOLERANCE, clock));
        }
        for (int off : new int[] {-301, 301}) {
            Clock clock = Clock.fixed(at.plusSeconds(off), ZoneOffset.UTC);
            thrown(SignatureException.class, () ->
                    Webhooks.verify(secrets, headers, bytes("{}"), Webhooks.TOLERANCE, clock));
        }
    }

    static void testVerifyRefusesForgedWebhooks() {
        Map<String, String> headers = signed(SECRET, Instant.now(), "{}");
        thrown(SignatureException.class, () -> Webhooks.verify(SECRET, headers, bytes("{ }")));
        thrown(SignatureException.class, () -> Webhooks.verify(OTHER_SECRET, headers, bytes("{}")));
        for (String name : List.of("Webhook-Id", "Webhook-Timestamp", "Webhook-Signature")) {
            Map<String, String> changed = new TreeMap<>(headers);
            changed.remove(name);
            thrown(SignatureException.class, () -> Webhooks.verify(SECRET, changed, bytes("{}")));
            changed.put(name, "+1");
            thrown(SignatureException.class, () -> Webhooks.verify(SECRET, changed, bytes("{}")));
        }
        for (String unusable : List.of("", "whsec_", "whsec_not base64!")) {
            thrown(IllegalArgumentException.class, () -> Webhooks.verify(unusable, headers, bytes("{}")));
        }
    }

    // -- Webhooks ----------------------------------------------------------------------------------

    private static HttpResponse<String> post(
            WebhookHandler hooks, String eventType, String body, String... headers) throws Exception {
        HttpServer server =
                HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/hooks", new WebhookHttpHandler(hooks));
        server.start();
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(
                            URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/hooks"))
                    .POST(HttpRequest.BodyPublishers.ofString(body))
                    .header("Hookstation-Event-Type", eventType);
            signed(SECRET, Instant.now(), body).forEach(request::setHeader);
            for (int i = 0; i < headers.length; i += 2) {
                request.setHeader(headers[i], headers[i + 1]);
            }
            return HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
        } finally {
            server.stop(0);
        }
    }

    private static WebhookHandler handler(WebhookHandler.EventHandler handle) {
        return WebhookHandler.builder().secret(SECRET).on("order.*", handle).build();
    }

    static void testHandlerRespondsByTheException() throws Exception {
        equal(204, post(handler(event -> {}), "order.created", "{}").statusCode());
        HttpResponse<String> retry = post(
                handler(event -> {
                    throw new RetryException(Duration.ofMillis(1500), "later");
                }),
                "order.created",
                "{}");
        equal("409 2", retry.statusCode() + " " + retry.headers().firstValue("Retry-After").orElse(""));
        HttpResponse<String> pause = post(
                handler(event -> {
                    throw RetryException.pausing(Duration.ofMinutes(1), "no database");
                }),
                "order.created",
                "{}");
        equal("503 60", pause.statusCode() + " " + pause.headers().firstValue("Retry-After").orElse(""));
        HttpResponse<String> reject = post(
                handler(event -> {
                    throw new RejectException("no");
                }),
                "order.created",
                "{}");
        equal(422, reject.statusCode());
        equal("never", reject.headers().firstValue("Hookstation-Retry").orElse(""));
        HttpResponse<String> failed = post(
                handler(event -> {
                    throw new IOException("password is 1234");
                }),
                "order.created",
                "{}");
        equal("500 {\"detail\":\"IOException\"}", failed.statusCode() + " " + failed.body());
    }

    static void testHandlerGetsTheWholeEvent() throws Exception {
        List<Event> got = new ArrayList<>();
        post(
                handler(got::add), "order.created", "{\"article\": \"tea\", \"count\": 2}",
                "Hookstation-Attempt", "3", "Hookstation-Accepted-At", "2026-11-21T08:08:08.383Z",
                "Hookstation-Replay", "true");
        Event event = got.get(0);
        equal("msg_1 order.created 3 1 4 true false 2026-11-21T08:08:08.383Z", String.join(
                " ", event.id(), event.eventType(), "" + event.attempt(), "" + event.maxAttempts(),
                "" + event.priority(), "" + event.isReplay(), "" + event.isTest(), "" + event.acceptedAt()));
        equal(new Line("tea", 2), event.as(Line.class));
    }

    static void testFirstMatchingHandlerIsCalled() throws Exception {
        List<String> called = new ArrayList<>();
        WebhookHandler.Builder builder = WebhookHandler.builder().secret(SECRET);
        for (String pattern : List.of("order", "order.*", "invoice.paid")) {
            builder.on(pattern, event -> called.add(pattern));
        }
        WebhookHandler hooks = builder.build();
        for (String eventType : List.of("order.created.late", "order", "invoice.paid")) {
            equal(204, post(hooks, eventType, "{}").statusCode());
        }
        equal(List.of("order.*", "order", "invoice.paid"), called);
        for (String eventType : List.of("invoice.sent", "orders.created", "")) {
            equal(422, post(hooks, eventType, "{}").statusCode());
        }
    }

    static void testForgedAndInvalidRequestsReachNoHandler() throws Exception {
        WebhookHandler hooks = WebhookHandler.builder()
                .secret(SECRET)
                .maxBodyBytes(10)
                .on("*", event -> {
                    throw new AssertionError("called");
                })
                .build();
        equal(401, post(hooks, "a", "{}", "Webhook-Id", "msg_2").statusCode());
        equal(413, post(hooks, "a", "12345678901").statusCode());
        equal(204, post(hooks, "a", "{}", "Hookstation-Test", "true").statusCode());
        equal(411, hooks.handle("POST", Map.of(), System.in).status());
        equal(405, hooks.handle("GET", Map.of(), System.in).status());
    }

    static void testRepeatIsHandledOnceAndFailureIsRetried() throws Exception {
        Path path = Files.createTempDirectory("hookstation").resolve("handled");
        AtomicInteger calls = new AtomicInteger();
        WebhookHandler.EventHandler handle = event -> {
            if (calls.incrementAndGet() == 1) {
                throw new IllegalStateException("no database");
            }
        };
        try (FileStore store = new FileStore(path)) {
            WebhookHandler hooks =
                    WebhookHandler.builder().secret(SECRET).store(store).on("*", handle).build();
            equal(500, post(hooks, "a", "{}").statusCode());
            equal(204, post(hooks, "a", "{}").statusCode());
            equal(204, post(hooks, "a", "{}").statusCode());
            equal(2, calls.get());
        }
        // Handled messages survive a kill; an incomplete line is ignored.
        Files.writeString(path, "170000", StandardOpenOption.APPEND);
        try (FileStore next = new FileStore(path)) {
            isTrue(next.claim("msg_1").isEmpty(), "forgotten");
            equal(1, Files.readAllLines(path).size());
        }
    }

    static void testMessageBeingHandledIsRetriedLater() {
        MemoryStore store = new MemoryStore();
        Store.Claim claim = store.claim("msg_1").orElseThrow();
        thrown(RetryException.class, () -> store.claim("msg_1"));
        claim.forget();
        isTrue(store.claim("msg_1").isPresent(), "claimed");
    }

    static void testStoreDeletesIdsAfterAWeek() {
        MemoryStore store = new MemoryStore();
        long now = System.currentTimeMillis() / 1000;
        store.remember("old", now - MemoryStore.KEEP_S - 60);
        store.remember("young", now - MemoryStore.KEEP_S + 60);
        isTrue(store.claim("young").isEmpty(), "forgotten");
        isTrue(store.claim("old").isPresent(), "remembered");
    }
}
