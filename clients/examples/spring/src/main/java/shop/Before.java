package shop;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Profile;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatus;
import org.springframework.http.ProblemDetail;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

/** Receives signed webhooks without the client. */
@RestController
@Profile("before")
class Before {
    private final SecretKeySpec secret;
    private final Orders orders;
    private final ObjectMapper json;
    private final JdbcTemplate database;
    private final TransactionTemplate transaction;

    Before(
            @Value("${hookstation.secret}") String secret,
            Orders orders,
            ObjectMapper json,
            JdbcTemplate database,
            TransactionTemplate transaction) {
        byte[] key = Base64.getDecoder().decode(secret.replaceFirst("^whsec_", ""));
        this.secret = new SecretKeySpec(key, "HmacSHA256");
        this.orders = orders;
        this.json = json;
        this.database = database;
        this.transaction = transaction;
    }

    @PostMapping("/hooks")
    ResponseEntity<?> receive(@RequestHeader HttpHeaders headers, @RequestBody byte[] body)
            throws GeneralSecurityException {
        if (!isSigned(headers, body)) {
            return problem(HttpStatus.UNAUTHORIZED, "forged, too old or too new").build();
        }
        String message = headers.getFirst("webhook-id");
        if (isHandled(message)) {
            return ResponseEntity.noContent().build();
        }
        Order order;
        try {
            order = json.readValue(body, Order.class);
        } catch (IOException error) {
            return reject("not an order");
        }
        if (order == null || order.id() == 0) {
            return reject("no order");
        }
        if (order.quantity() > 100) {
            return reject("more than the shop has");
        }
        if ("fresh bread".equals(order.article())
                && "1".equals(headers.getFirst("Hookstation-Attempt"))) {
            return problem(HttpStatus.CONFLICT, "still in the oven")
                    .header("Retry-After", "1")
                    .build();
        }
        transaction.executeWithoutResult(status -> {
            database.update("INSERT INTO handled VALUES (?)", message);
            orders.store(order);
        });
        return ResponseEntity.noContent().build();
    }

    private boolean isSigned(HttpHeaders headers, byte[] body) throws GeneralSecurityException {
        String timestamp = header(headers, "webhook-timestamp");
        if (!timestamp.matches("[0-9]{1,15}")
                || Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(timestamp)) > 300) {
            return false;
        }
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(secret);
        mac.update((header(headers, "webhook-id") + "." + timestamp + ".")
                .getBytes(StandardCharsets.UTF_8));
        String expected = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
        for (String given : header(headers, "webhook-signature").split(" ")) {
            if (MessageDigest.isEqual(
                    expected.getBytes(StandardCharsets.UTF_8),
                    given.getBytes(StandardCharsets.UTF_8))) {
                return true;
            }
        }
        return false;
    }

    private static String header(HttpHeaders headers, String name) {
        String value = headers.getFirst(name);
        return value == null ? "" : value;
    }

    private boolean isHandled(String message) {
        String query = "SELECT count(*) FROM handled WHERE id = ?";
        return database.queryForObject(query, Integer.class, message) > 0;
    }

    private static ResponseEntity<?> reject(String detail) {
        return problem(HttpStatus.UNPROCESSABLE_ENTITY, detail)
                .header("Hookstation-Retry", "never")
                .build();
    }

    private static ResponseEntity.HeadersBuilder<?> problem(HttpStatus status, String detail) {
        return ResponseEntity.of(ProblemDetail.forStatusAndDetail(status, detail));
    }
}
