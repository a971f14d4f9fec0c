package dev.hookstation.client.servlet;

import dev.hookstation.client.WebhookHandler;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Map;
import java.util.TreeMap;

/**
 * Connects a {@link WebhookHandler} to a servlet container. In Spring Boot it is a bean:
 *
 * <pre>{@code
 * @Bean
 * ServletRegistrationBean<WebhookServlet> hooks(WebhookHandler handler) {
 *     return new ServletRegistrationBean<>(new WebhookServlet(handler), "/hooks");
 * }
 * }</pre>
 *
 * <p>Exempt its path from CSRF protection: the signature protects it.
 */
public final class WebhookServlet extends HttpServlet {
    private static final long serialVersionUID = 1L;

    private final transient WebhookHandler hooks;

    /**
     * Creates a servlet.
     *
     * @param hooks the handler of the requests
     */
    public WebhookServlet(WebhookHandler hooks) {
        this.hooks = hooks;
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response)
            throws IOException {
        Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        request.getHeaderNames()
                .asIterator()
                .forEachRemaining(name -> headers.put(name, request.getHeader(name)));
        WebhookHandler.Response answer =
                hooks.handle(request.getMethod(), headers, request.getInputStream());
        response.setStatus(answer.status());
        answer.headers().forEach(response::setHeader);
        response.getOutputStream().write(answer.body());
    }
}
