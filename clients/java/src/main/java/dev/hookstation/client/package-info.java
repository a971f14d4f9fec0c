/**
 * The Java client of Hookstation, the webhook broker that stores every message before it
 * acknowledges it.
 *
 * <p>{@link dev.hookstation.client.Hookstation} publishes, receives and manages channels, consumers
 * and schedules; {@link dev.hookstation.client.Worker} handles the messages of a pull consumer;
 * {@link dev.hookstation.client.WebhookHandler} receives signed webhooks; {@link
 * dev.hookstation.client.Webhooks} signs and verifies them. The package needs only the JDK.
 */
package dev.hookstation.client;
