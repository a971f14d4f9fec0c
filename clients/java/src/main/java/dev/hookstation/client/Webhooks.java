package dev.hookstation.client;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Signs and verifies webhooks: Standard Webhooks 1.0.0, scheme {@code v1}, HMAC-SHA256. */
public final class Webhooks {
    /** The largest difference of a timestamp, as Standard Webhooks recommends. */
    public static final Duration TOLERANCE = Duration.ofMinutes(5);

    private static final String PREFIX = "whsec_";

    private Webhooks() {}

    /**
     * Signs a body.
     *
     * @param secret {@code whsec_} and base64
     * @param messageId the {@code webhook-id}
     * @param timestamp the {@code webhook-timestamp}
     * @param body the exact bytes
     * @return the signature for {@code webhook-signature}
     * @throws IllegalArgumentException if the secret is empty or not base64
     */
    public static String sign(String secret, String messageId, Instant timestamp, byte[] body) {
        return signature(key(secret), messageId, Long.toString(timestamp.getEpochSecond()), body);
    }

    /**
     * Verifies a webhook with one secret, a tolerance of five minutes and this machine's clock.
     *
     * @param secret {@code whsec_} and base64
     * @param headers those of the request, in any letter case
     * @param body the exact bytes of the request
     * @return its {@code webhook-id}
     * @throws SignatureException if no signature matches, or it is too old or too new
     * @throws IllegalArgumentException if the secret is empty or not base64
     */
    public static String verify(String secret, Map<String, String> headers, byte[] body)
            throws SignatureException {
        return verify(List.of(secret), headers, body, TOLERANCE, Clock.systemUTC());
    }

    /**
     * Verifies a webhook.
     *
     * @param secrets signing secrets, several during a rotation
     * @param headers those of the request, in any letter case
     * @param body the exact bytes of the request
     * @param tolerance the largest difference of the timestamp
     * @param clock the clock
     * @return its {@code webhook-id}
     * @throws SignatureException if no signature matches, or it is too old or too new
     * @throws IllegalArgumentException if a secret is empty or not base64
     */
    public static String verify(
            Collection<String> secrets,
            Map<String, String> headers,
            byte[] body,
            Duration tolerance,
            Clock clock)
            throws SignatureException {
        Map<String, String> found = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        found.putAll(headers);
        String messageId = header(found, "webhook-id");
        String timestamp = header(found, "webhook-timestamp");
        String signatures = header(found, "webhook-signature");
        checkTimestamp(timestamp, tolerance, clock);
        for (String secret : secrets) {
            byte[] expected = bytes(signature(key(secret), messageId, timestamp, body));
            for (String given : signatures.split(" ")) {
                if (MessageDigest.isEqual(expected, bytes(given))) {
                    return messageId;
                }
            }
        }
        throw new SignatureException("No signature matches.");
    }

    private static String header(Map<String, String> headers, String name) throws SignatureException {
        String value = headers.get(name);
        if (value == null || value.isEmpty()) {
            throw new SignatureException("The header " + name + " is missing.");
        }
        return value;
    }

    private static void checkTimestamp(String timestamp, Duration tolerance, Clock clock)
            throws SignatureException {
        if (!timestamp.matches("[0-9]{1,15}")) {
            throw new SignatureException("webhook-timestamp is not a whole number of seconds.");
        }
        long off = clock.instant().getEpochSecond() - Long.parseLong(timestamp);
        if (Math.abs(off) > tolerance.toSeconds()) {
            throw new SignatureException("The timestamp is " + off + " s off; the limit is "
                    + tolerance.toSeconds() + " s.");
        }
    }

    private static String signature(byte[] key, String messageId, String timestamp, byte[] body) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update(bytes(messageId + "." + timestamp + "."));
            return "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
        } catch (GeneralSecurityException error) { // every JDK has HmacSHA256
            throw new IllegalStateException(error);
        }
    }

    private static byte[] key(String secret) {
        String encoded = secret.startsWith(PREFIX) ? secret.substring(PREFIX.length()) : secret;
        byte[] key;
        try {
            key = Base64.getDecoder().decode(encoded);
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException("The secret is not base64 after whsec_.");
        }
        if (key.length == 0) {
            // Anybody could sign with an empty key.
            throw new IllegalArgumentException("The secret is empty.");
        }
        return key;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
