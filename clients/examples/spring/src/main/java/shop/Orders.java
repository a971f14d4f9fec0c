package shop;

import java.util.List;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** Stores orders in the database, and lists their numbers. */
@RestController
class Orders {
    private final JdbcTemplate database;

    Orders(JdbcTemplate database) {
        this.database = database;
    }

    @GetMapping("/orders")
    List<Long> list() {
        return database.queryForList("SELECT id FROM orders ORDER BY id", Long.class);
    }

    void store(Order order) {
        database.update("REPLACE INTO orders VALUES (?, ?)", order.id(), order.article());
    }
}
