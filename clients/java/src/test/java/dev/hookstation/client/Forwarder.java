package dev.hookstation.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** A connection to a server that can be cut: it listens, and forwards bytes in both directions. */
final class Forwarder {
    /** Bytes that came from the server. */
    final AtomicLong received = new AtomicLong();

    private final Set<Socket> open = ConcurrentHashMap.newKeySet();
    private final String host;
    private final int to;
    private final int port;
    private ServerSocket listening;

    /** Nothing listens before {@link #listen}. */
    Forwarder(String url) {
        URI uri = URI.create(url);
        host = uri.getHost();
        to = uri.getPort();
        try (ServerSocket probe = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            port = probe.getLocalPort();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    String url() {
        return "grpc://127.0.0.1:" + port;
    }

    synchronized void listen() {
        try {
            listening = new ServerSocket(port, 50, InetAddress.getLoopbackAddress());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        daemon(() -> accept(listening));
    }

    /** Closes all connections; nobody listens any more. */
    synchronized void cut() {
        close(listening);
        open.forEach(Forwarder::close);
    }

    private void accept(ServerSocket server) {
        try {
            while (true) {
                Socket client = server.accept();
                Socket target = new Socket(host, to);
                open.add(client);
                open.add(target);
                daemon(() -> forward(client, target, new AtomicLong()));
                daemon(() -> forward(target, client, received));
            }
        } catch (IOException closed) {
            open.forEach(Forwarder::close);
        }
    }

    private static void forward(Socket from, Socket into, AtomicLong count) {
        try {
            InputStream in = from.getInputStream();
            OutputStream out = into.getOutputStream();
            byte[] some = new byte[65_536];
            for (int read = in.read(some); read >= 0; read = in.read(some)) {
                out.write(some, 0, read);
                count.addAndGet(read);
            }
        } catch (IOException closed) {
            // The other side is closed below.
        }
        close(from);
        close(into);
    }

    private static void close(AutoCloseable one) {
        try {
            one.close();
        } catch (Exception ignored) {
            // It is closed.
        }
    }

    private static void daemon(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
    }
}
