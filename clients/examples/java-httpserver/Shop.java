import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Executors;

/** Keeps order numbers in a file, one line each, with the id of the message that brought them. */
final class Shop {
    private final Set<Long> orders = new TreeSet<>();
    private final Set<String> handled = new HashSet<>();
    private final RandomAccessFile file;

    Shop(String path) throws IOException {
        file = new RandomAccessFile(path, "rw");
        byte[] content = new byte[(int) file.length()];
        file.readFully(content);
        String text = new String(content, StandardCharsets.UTF_8);
        String whole = text.substring(0, text.lastIndexOf('\n') + 1);
        whole.lines().forEach(line -> keep(line.split(" ", 2)));
        // After a kill the last line may be incomplete.
        file.setLength(whole.length());
        file.seek(whole.length());
    }

    /** Stores an order and, unless it is "", the id of the message that brought it. */
    synchronized void accept(long order, String message) throws IOException {
        file.write((order + " " + message + "\n").getBytes(StandardCharsets.UTF_8));
        keep(Long.toString(order), message);
    }

    synchronized boolean isHandled(String message) {
        return handled.contains(message);
    }

    /** Answers with the numbers of all orders at /orders, and with the handler at /hooks. */
    void serve(int port, HttpHandler hooks) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/orders", this::list);
        server.createContext("/hooks", hooks);
        server.start();
    }

    private void list(HttpExchange exchange) throws IOException {
        byte[] found;
        synchronized (this) {
            found = orders.toString().getBytes(StandardCharsets.UTF_8);
        }
        try (exchange) {
            exchange.sendResponseHeaders(200, found.length);
            exchange.getResponseBody().write(found);
        }
    }

    private void keep(String... orderAndMessage) {
        orders.add(Long.valueOf(orderAndMessage[0]));
        handled.add(orderAndMessage[1]);
    }
}
