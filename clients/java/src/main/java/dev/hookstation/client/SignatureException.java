package dev.hookstation.client;

/** A webhook that is not signed with the secret, or whose timestamp is too old or too new. */
public final class SignatureException extends Exception {
    private static final long serialVersionUID = 1L;

    SignatureException(String message) {
        super(message);
    }
}
