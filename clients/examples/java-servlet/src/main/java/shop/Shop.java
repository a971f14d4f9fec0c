package shop;

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Stores orders in SQLite, and lists their numbers at /orders. */
final class Shop {
    private final String url;

    Shop(String path) throws SQLException {
        // A connection waits up to 30 seconds for another one that writes.
        url = "jdbc:sqlite:" + path + "?busy_timeout=30000";
        try (Connection database = connect(); Statement statement = database.createStatement()) {
            statement.execute(
                    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)");
            statement.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)");
        }
    }

    /** Opens a connection, for one transaction or query. */
    Connection connect() throws SQLException {
        return DriverManager.getConnection(url);
    }

    /** Stores an order in the connection's transaction. */
    static void store(Connection database, Order order) throws SQLException {
        try (PreparedStatement statement =
                database.prepareStatement("REPLACE INTO orders VALUES (?, ?)")) {
            statement.setLong(1, order.id());
            statement.setString(2, order.article());
            statement.execute();
        }
    }

    /** Answers with the numbers of all orders at /orders, and with the servlet at /hooks. */
    void serve(int port, HttpServlet hooks) throws Exception {
        Server server = new Server(new InetSocketAddress("127.0.0.1", port));
        ServletContextHandler context = new ServletContextHandler("/");
        context.addServlet(new ServletHolder(hooks), "/hooks");
        context.addServlet(new ServletHolder(new Listing()), "/orders");
        server.setHandler(context);
        server.start();
        server.join();
    }

    private final class Listing extends HttpServlet {
        private static final long serialVersionUID = 1L;

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse response)
                throws IOException {
            response.setContentType("application/json");
            response.getWriter().print(orders());
        }
    }

    private List<Long> orders() throws IOException {
        List<Long> found = new ArrayList<>();
        try (Connection database = connect();
                Statement statement = database.createStatement();
                ResultSet rows = statement.executeQuery("SELECT id FROM orders ORDER BY id")) {
            while (rows.next()) {
                found.add(rows.getLong(1));
            }
        } catch (SQLException error) {
            throw new IOException(error);
        }
        return found;
    }
}
