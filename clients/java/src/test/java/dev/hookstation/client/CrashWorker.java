package dev.hookstation.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

/** A worker for tests that kill it: CHANNEL FILE NAME [resume]. It writes each id that it handles. */
public final class CrashWorker {
    private CrashWorker() {}

    public static void main(String[] arguments) throws IOException {
        Path handled = Path.of(arguments[1]);
        Worker.builder(Hookstation.fromEnvironment(), arguments[0], "all", delivery -> {
                    Thread.sleep(5);
                    Files.writeString(
                            handled,
                            delivery.id() + "\n",
                            StandardOpenOption.CREATE,
                            StandardOpenOption.APPEND);
                })
                .concurrency(8)
                .lease(Duration.ofSeconds(3))
                .waitFor(Duration.ofSeconds(1))
                .workerId(arguments[2])
                .resume(arguments.length > 3 && arguments[3].equals("resume"))
                .build()
                .run();
    }
}
