/** Webhooks in a servlet container of Jakarta EE 9 or newer, Spring Boot 3 among them. */
package dev.hookstation.client.servlet;
