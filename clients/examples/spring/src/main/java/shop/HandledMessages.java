package shop;

import dev.hookstation.client.Store;
import java.util.Optional;
import org.springframework.context.annotation.Profile;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Component;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.TransactionStatus;

/** Records each handled message in the transaction of its handler. */
@Component
@Profile("after")
class HandledMessages implements Store {
    private final JdbcTemplate database;
    private final PlatformTransactionManager transactions;

    HandledMessages(JdbcTemplate database, PlatformTransactionManager transactions) {
        this.database = database;
        this.transactions = transactions;
    }

    @Override
    public Optional<Claim> claim(String messageId) {
        TransactionStatus transaction =
                transactions.getTransaction(TransactionDefinition.withDefaults());
        Claim claim = claim(transaction);
        try {
            if (database.update("INSERT OR IGNORE INTO handled VALUES (?)", messageId) == 1) {
                return Optional.of(claim);
            }
        } catch (RuntimeException error) {
            claim.forget();
            throw error;
        }
        claim.forget();
        return Optional.empty();
    }

    private Claim claim(TransactionStatus transaction) {
        return new Claim() {
            @Override
            public void done() {
                transactions.commit(transaction);
            }

            @Override
            public void forget() {
                transactions.rollback(transaction);
            }
        };
    }
}
