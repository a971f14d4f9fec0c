package shop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** A shop that receives signed webhooks without the client, in a servlet. */
final class Before extends HttpServlet {
    private static final long serialVersionUID = 1L;

    private final transient Shop shop;
    private final transient ObjectMapper json = new ObjectMapper()
            .configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);

    private Before(Shop shop) {
        this.shop = shop;
    }

    public static void main(String[] arguments) throws Exception {
        Shop shop = new Shop(System.getenv("SHOP_DB"));
        shop.serve(Integer.parseInt(arguments[0]), new Before(shop));
    }

    @Override
    protected void doPost(HttpServletRequest request, HttpServletResponse response)
            throws IOException {
        byte[] body = request.getInputStream().readAllBytes();
        if (!isSigned(request, body)) {
            answer(response, 401, "forged, too old or too new");
            return;
        }
        String message = request.getHeader("webhook-id");
        try (Connection database = shop.connect()) {
            if (isHandled(database, message)) {
                response.setStatus(204);
                return;
            }
            Order order = json.readValue(body, Order.class);
            if (order == null || order.id() == 0) {
                reject(response, "no order");
            } else if (order.quantity() > 100) {
                reject(response, "more than the shop has");
            } else if ("fresh bread".equals(order.article())
                    && "1".equals(request.getHeader("Hookstation-Attempt"))) {
                response.setHeader("Retry-After", "1");
                answer(response, 409, "still in the oven");
            } else {
                accept(database, order, message);
                response.setStatus(204);
            }
        } catch (JsonProcessingException error) {
            reject(response, "not an order");
        } catch (SQLException error) {
            throw new IOException(error);
        }
    }

    /** Stores an order and the id of the message that brought it in one transaction. */
    private static void accept(Connection database, Order order, String message)
            throws SQLException {
        database.setAutoCommit(false);
        try (PreparedStatement statement =
                database.prepareStatement("INSERT INTO handled VALUES (?)")) {
            statement.setString(1, message);
            statement.execute();
        }
        Shop.store(database, order);
        database.commit();
    }

    private static boolean isHandled(Connection database, String message) throws SQLException {
        try (PreparedStatement statement =
                database.prepareStatement("SELECT 1 FROM handled WHERE id = ?")) {
            statement.setString(1, message);
            return statement.executeQuery().next();
        }
    }

    private static boolean isSigned(HttpServletRequest request, byte[] body) throws IOException {
        String timestamp = header(request, "webhook-timestamp");
        if (!timestamp.matches("[0-9]{1,15}")
                || Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(timestamp)) > 300) {
            return false;
        }
        byte[] expected;
        try {
            String secret = System.getenv("HOOKSTATION_SECRET").replaceFirst("^whsec_", "");
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(Base64.getDecoder().decode(secret), "HmacSHA256"));
            mac.update((header(request, "webhook-id") + "." + timestamp + ".")
                    .getBytes(StandardCharsets.UTF_8));
            expected = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body)))
                    .getBytes(StandardCharsets.UTF_8);
        } catch (GeneralSecurityException error) {
            throw new IOException(error);
        }
        for (String given : header(request, "webhook-signature").split(" ")) {
            if (MessageDigest.isEqual(expected, given.getBytes(StandardCharsets.UTF_8))) {
                return true;
            }
        }
        return false;
    }

    private static String header(HttpServletRequest request, String name) {
        String value = request.getHeader(name);
        return value == null ? "" : value;
    }

    private static void reject(HttpServletResponse response, String detail) throws IOException {
        response.setHeader("Hookstation-Retry", "never");
        answer(response, 422, detail);
    }

    private static void answer(HttpServletResponse response, int status, String detail)
            throws IOException {
        response.setStatus(status);
        response.setContentType("text/plain");
        response.getWriter().print(detail);
    }
}
