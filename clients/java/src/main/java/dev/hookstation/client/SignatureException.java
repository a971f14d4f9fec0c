package dev.hookstation.client;

/** A webhook is not signed with the secret, or its timestamp is too old or too new. */
public final class SignatureException extends Exception {
    private static final long serialVersionUID = 1L;

    SignatureException(String message) {
        super(message);
    }
}
