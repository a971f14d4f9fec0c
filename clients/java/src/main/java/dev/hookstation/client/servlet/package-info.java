/** Receives webhooks in a servlet container of Jakarta EE 9 or newer, such as Spring Boot 3. */
package dev.hookstation.client.servlet;
