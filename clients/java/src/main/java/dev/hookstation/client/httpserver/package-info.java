/** Receives webhooks in the JDK's own HTTP server, {@code com.sun.net.httpserver}. */
package dev.hookstation.client.httpserver;
