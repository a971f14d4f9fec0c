import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * A shop that receives signed webhooks without the client, with the JDK's HTTP server.
 *
 * <p>SHOP_DB=shop.orders HOOKSTATION_SECRET=whsec_... java -cp classes Before 8100
 */
final class Before {
    private static Shop shop;

    public static void main(String[] arguments) throws IOException {
        shop = new Shop(System.getenv("SHOP_DB"));
        shop.serve(Integer.parseInt(arguments[0]), Before::receive);
    }

    private static void receive(HttpExchange exchange) throws IOException {
        byte[] body = exchange.getRequestBody().readAllBytes();
        if (!isSigned(exchange, body)) {
            answer(exchange, 401, "forged, too old or too new");
            return;
        }
        String message = header(exchange, "webhook-id");
        if (shop.isHandled(message)) {
            answer(exchange, 204, "");
            return;
        }
        String text = new String(body, StandardCharsets.UTF_8);
        String id = member(text, "id");
        String article = member(text, "article");
        String quantity = member(text, "quantity");
        if (id.isEmpty()) {
            reject(exchange, "no order");
        } else if (!quantity.isEmpty() && Integer.parseInt(quantity) > 100) {
            reject(exchange, "more than the shop has");
        } else if (article.equals("fresh bread") && header(exchange, "Hookstation-Attempt").equals("1")) {
            exchange.getResponseHeaders().set("Retry-After", "1");
            answer(exchange, 409, "still in the oven");
        } else {
            shop.accept(Long.parseLong(id), message);
            answer(exchange, 204, "");
        }
    }

    private static boolean isSigned(HttpExchange exchange, byte[] body) {
        String timestamp = header(exchange, "webhook-timestamp");
        if (!timestamp.matches("[0-9]{1,15}")
                || Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(timestamp)) > 300) {
            return false;
        }
        byte[] expected;
        try {
            String secret = System.getenv("HOOKSTATION_SECRET").replaceFirst("^whsec_", "");
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(Base64.getDecoder().decode(secret), "HmacSHA256"));
            mac.update((header(exchange, "webhook-id") + "." + timestamp + ".").getBytes(StandardCharsets.UTF_8));
            expected = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body)))
                    .getBytes(StandardCharsets.UTF_8);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
        for (String given : header(exchange, "webhook-signature").split(" ")) {
            if (MessageDigest.isEqual(expected, given.getBytes(StandardCharsets.UTF_8))) {
                return true;
            }
        }
        return false;
    }

    /** Reads a number or a text from a JSON object: the JDK has no JSON parser. */
    private static String member(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*(?:\"([^\"]*)\"|(\\d+))").matcher(json);
        if (!found.find()) {
            return "";
        }
        return found.group(1) != null ? found.group(1) : found.group(2);
    }

    private static String header(HttpExchange exchange, String name) {
        String value = exchange.getRequestHeaders().getFirst(name);
        return value == null ? "" : value;
    }

    private static void reject(HttpExchange exchange, String detail) throws IOException {
        exchange.getResponseHeaders().set("Hookstation-Retry", "never");
        answer(exchange, 422, detail);
    }

    private static void answer(HttpExchange exchange, int status, String detail) throws IOException {
        byte[] body = detail.getBytes(StandardCharsets.UTF_8);
        try (exchange) {
            exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
        }
    }
}
