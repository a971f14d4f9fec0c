package dev.hookstation.client.grpc;

import com.google.protobuf.InvalidProtocolBufferException;
import dev.hookstation.client.HookstationException;
import dev.hookstation.client.Resource;
import dev.hookstation.client.grpc.v1.Problem;
import io.grpc.Metadata;
import io.grpc.Status;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/** The exceptions for calls that failed. */
final class Errors {
    static final Metadata.Key<byte[]> PROBLEM =
            Metadata.Key.of("hookstation-problem-bin", Metadata.BINARY_BYTE_MARSHALLER);

    private Errors() {}

    /** The broker's problem, or what the connection or a proxy says. */
    static HookstationException of(Throwable error) {
        Metadata trailers = Status.trailersFromThrowable(error);
        byte[] problem = trailers == null ? null : trailers.get(PROBLEM);
        if (problem != null) {
            try {
                return of(Problem.parseFrom(problem));
            } catch (InvalidProtocolBufferException unreadable) {
                // The status says less, but something.
            }
        }
        Status status = Status.fromThrowable(error);
        String detail = "gRPC: " + status.getCode() + ": " + status.getDescription();
        if (status.getCause() != null) {
            detail += ": " + status.getCause().getMessage();
        }
        return HookstationException.of(
                httpStatus(status.getCode()), new Resource(Map.of("detail", detail)), Duration.ZERO);
    }

    private static HookstationException of(Problem problem) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("code", problem.getCode());
        fields.put("detail", problem.getDetail());
        if (!problem.getField().isEmpty()) {
            fields.put("field", problem.getField());
        }
        Duration wait = Duration.ofMillis(Math.round(problem.getRetryAfterS() * 1000));
        return HookstationException.of(problem.getStatus(), new Resource(fields), wait);
    }

    /** The HTTP status of a refusal that does not come from the broker itself; 0 is none. */
    private static int httpStatus(Status.Code code) {
        return switch (code) {
            case UNAUTHENTICATED -> 401;
            case PERMISSION_DENIED -> 403;
            case NOT_FOUND -> 404;
            case INVALID_ARGUMENT -> 422;
            case RESOURCE_EXHAUSTED -> 429;
            default -> 0;
        };
    }
}
