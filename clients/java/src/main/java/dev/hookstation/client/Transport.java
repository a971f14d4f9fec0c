package dev.hookstation.client;

import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Clock;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLHandshakeException;

/** Sends calls, retries failed ones, and uses the next address while one is unavailable. */
final class Transport {
    private static final long FIRST_BACKOFF_MS = 200;
    private static final long MAX_BACKOFF_MS = 20_000;

    /**
     * Longest Retry-After that the client waits for; if it is longer, it throws the error at once.
     */
    private static final Duration MAX_RETRY_AFTER = Duration.ofSeconds(60);

    private final List<String> urls;
    private final String key;
    private final Duration timeout;
    private final int retries;
    private final HttpClient http;
    private final Clock clock;

    /** Index in urls of the address that responded last. */
    private final AtomicInteger current = new AtomicInteger();

    Transport(
            List<String> urls, String key, Duration timeout, int retries, HttpClient http, Clock clock) {
        this.urls = urls;
        this.key = key;
        this.timeout = timeout;
        this.retries = retries;
        this.http = http;
        this.clock = clock;
    }

    /** Returns the body of a successful response. Every retry sends the same bytes and headers. */
    byte[] send(Call call) {
        for (int retry = 0; ; retry++) {
            try {
                return sendToEach(call);
            } catch (HookstationException error) {
                if (retry >= retries
                        || !mayRepeat(call, error)
                        || error.retryAfter().compareTo(MAX_RETRY_AFTER) > 0) {
                    throw error;
                }
                sleep(call, waitMillis(error, retry));
            }
        }
    }

    /** Tries the addresses, beginning with the one that responded last, until one is available. */
    private byte[] sendToEach(Call call) {
        for (int left = urls.size(); ; left--) {
            int index = current.get();
            try {
                return sendOnce(urls.get(index), call);
            } catch (HookstationException error) {
                if (!isAway(error)) {
                    throw error;
                }
                // If several threads see the same failure, only one moves to the next address.
                current.compareAndSet(index, (index + 1) % urls.size());
                if (left == 1 || retries == 0 || !mayRepeat(call, error)) {
                    throw error;
                }
            }
        }
    }

    private byte[] sendOnce(String url, Call call) {
        Duration limit = timeout.plus(call.wait);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + call.target()))
                .timeout(limit)
                .header("Authorization", "Bearer " + key)
                .header("User-Agent", "hookstation-java/" + Hookstation.VERSION)
                .method(call.method, call.body.length == 0
                        ? HttpRequest.BodyPublishers.noBody()
                        : HttpRequest.BodyPublishers.ofByteArray(call.body));
        call.headers.forEach(request::setHeader);
        CompletableFuture<HttpResponse<byte[]>> sent =
                http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofByteArray());
        HttpResponse<byte[]> response;
        try {
            // The request's own timeout covers only the headers of the response.
            response = sent.get(limit.toMillis(), TimeUnit.MILLISECONDS);
        } catch (TimeoutException error) {
            sent.cancel(true);
            throw failed("no_response", call, error);
        } catch (InterruptedException error) {
            sent.cancel(true);
            Thread.currentThread().interrupt();
            throw failed("interrupted", call, error);
        } catch (ExecutionException error) {
            Throwable cause = error.getCause();
            if (!(cause instanceof IOException)) {
                throw new IllegalStateException(cause);
            }
            throw failed(isUnsent(cause) ? "not_sent" : "no_response", call, cause);
        }
        if (response.statusCode() / 100 != 2) {
            throw HookstationException.of(
                    response.statusCode(), response.headers(), response.body(), clock);
        }
        return response.body();
    }

    /** Failures before the request was sent. */
    private static boolean isUnsent(Throwable error) {
        return error instanceof ConnectException
                || error instanceof HttpConnectTimeoutException
                || error instanceof UnknownHostException
                || error instanceof SSLHandshakeException;
    }

    private static HookstationException failed(String code, Call call, Throwable cause) {
        String said = cause.getMessage() == null ? cause.getClass().getSimpleName() : cause.getMessage();
        String detail = call.method + " " + call.path + ": " + said;
        return new HookstationException.ConnectionFailed(code, detail, cause);
    }

    /** Whether the broker did nothing, or the call is idempotent. */
    static boolean mayRepeat(Call call, HookstationException error) {
        switch (error.status()) {
            case 429, 503, 507:
                // Without a code the response comes from a proxy, which may have forwarded the
                // request before.
                return !error.code().isEmpty() || !call.isOnce;
            case 408, 500, 502, 504:
                return !call.isOnce;
            case 0:
                return error.code().equals("not_sent")
                        || (error.code().equals("no_response") && !call.isOnce);
            default:
                return false;
        }
    }

    /** Whether the address is unavailable, so that another one should be tried. */
    private static boolean isAway(HookstationException error) {
        return switch (error.status()) {
            case 0, 502, 503, 504 -> !error.code().equals("interrupted");
            default -> false;
        };
    }

    /**
     * How long to wait before a retry, counted from 0. The waits double. Half of each is random, so
     * that clients that failed at the same time do not retry at the same time.
     */
    static long waitMillis(HookstationException error, int retry) {
        long half = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS << Math.min(retry, 10)) / 2;
        long chance = ThreadLocalRandom.current().nextLong(half);
        return Math.max(error.retryAfter().toMillis(), half) + chance;
    }

    private static void sleep(Call call, long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw failed("interrupted", call, error);
        }
    }
}
