package dev.hookstation.client;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Map;

/**
 * Stores handled messages in a file, for one process at a time. They survive a kill of the process.
 * Messages that were being handled are not in the file, so they are handled again.
 */
public final class FileStore extends MemoryStore implements AutoCloseable {
    private final FileChannel file;

    /**
     * Opens the file, and creates it if it does not exist.
     *
     * @param path the file
     * @throws UncheckedIOException if it cannot be read or written
     */
    public FileStore(Path path) {
        try {
            if (Files.exists(path)) {
                Files.readAllLines(path, StandardCharsets.UTF_8).forEach(this::read);
            }
            rewrite(path);
            file = FileChannel.open(path, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void close() {
        try {
            file.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    void save(String messageId, long at) {
        try {
            write(file, at + " " + messageId + "\n");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void read(String line) {
        // A line that was cut off by a kill has no complete id; its message is handled again.
        int space = line.indexOf(' ');
        if (space > 0 && line.substring(0, space).matches("[1-9][0-9]{0,17}")) {
            remember(line.substring(space + 1), Long.parseLong(line.substring(0, space)));
        }
    }

    /** Rewrites the file with the kept messages only, so that it does not grow for ever. */
    private void rewrite(Path path) throws IOException {
        Path fresh = path.resolveSibling(path.getFileName() + ".new");
        StringBuilder lines = new StringBuilder();
        for (Map.Entry<String, Long> entry : handled().entrySet()) {
            lines.append(entry.getValue()).append(' ').append(entry.getKey()).append('\n');
        }
        try (FileChannel out = FileChannel.open(
                fresh,
                StandardOpenOption.CREATE,
                StandardOpenOption.TRUNCATE_EXISTING,
                StandardOpenOption.WRITE)) {
            write(out, lines.toString());
        }
        Files.move(fresh, path, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }

    private static void write(FileChannel out, String text) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
        while (bytes.hasRemaining()) {
            out.write(bytes);
        }
        out.force(true);
    }
}
